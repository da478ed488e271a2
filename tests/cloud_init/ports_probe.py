"""Prints as JSON which accounts and machines can connect to a job's port and to another account's port.

test_stage_ports.py runs the program as root, with the namespaces `other` (a second node) and `neighbour` (a machine
that is not in the cluster). The argument is a file of nftables rules, or "-" for none.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import NamedTuple

from tests.cloud_init.metadata_probe import MPTCP, OWNERS_TABLE, enter, family

JOB, SLURM, DAEMON, PERSON, NOBODY = 2000, 64030, 101, 1001, 65534
SERVICES = {"job": (JOB, 21000), "rank": (JOB, 40000), "person": (PERSON, 21001), "low": (PERSON, 8080)}
CALLERS = {"root": 0, "job": JOB, "slurm": SLURM, "daemon": DAEMON, "person": PERSON, "nobody": NOBODY}


def serve(uid: int, port: int, protocol: int = 0) -> int:
    """Listen on all addresses, like torch's store, in a child process."""
    child = os.fork()
    if child:
        return child
    os.setgid(uid)
    os.setuid(uid)
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, protocol) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("::", port))
        server.listen(64)
        while True:
            server.accept()[0].close()


class Client(NamedTuple):
    """A client: its uid, the namespace of its machine, its own port or 0, and its protocol or 0."""

    uid: int
    namespace: str = ""
    source: int = 0
    protocol: int = 0


def start(client: Client, address: str, port: int) -> int:
    """Connect from a new process. Return a pipe for its answer."""
    read, write = os.pipe()
    if os.fork() == 0:
        if client.namespace:
            enter(client.namespace)
        os.setgid(client.uid)
        os.setuid(client.uid)
        os.write(write, attempt(client, address, port).encode())
        os._exit(0)
    os.close(write)
    return read


def answer(pipe: int) -> str:
    """Wait for the answer from a process: "open", "refused", "silent" or the error."""
    with os.fdopen(pipe) as file:
        found = file.read()
    os.wait()
    return found


def connect(client: Client, address: str, port: int) -> str:
    """Connect from a new process. Return its answer."""
    return answer(start(client, address, port))


def attempt(client: Client, address: str, port: int) -> str:
    """Connect, and return the result in one word."""
    with socket.socket(family(address), socket.SOCK_STREAM, client.protocol) as opened:
        opened.settimeout(0.5)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(("", client.source))
            opened.connect((address, port))
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "silent"
        except OSError as error:
            return str(error)
    return "open"


def reached(address: str, namespace: str = "", callers: dict[str, int] = CALLERS) -> dict[str, dict[str, str]]:
    """Return the results of all callers for each service."""
    pipes = {
        name: {caller: start(Client(uid, namespace), address, port) for caller, uid in callers.items()}
        for name, (_, port) in SERVICES.items()
    }
    return {name: {caller: answer(pipe) for caller, pipe in found.items()} for name, found in pipes.items()}


def main() -> None:
    """Start the services, apply the rules twice, connect, and print the results."""
    servers = [serve(uid, port) for uid, port in SERVICES.values()]
    servers.append(serve(JOB, 21002, MPTCP))
    time.sleep(0.5)
    subprocess.run(["nft", OWNERS_TABLE], check=True)
    for _ in range(2):
        if sys.argv[1] != "-":
            subprocess.run(["nft", "-f", sys.argv[1]], check=True)
            subprocess.run(["ip", "netns", "exec", "other", "nft", "-f", sys.argv[1]], check=True)
    answers: dict[str, object] = {
        "loopback": reached("127.0.0.1"),
        "loopback6": reached("::1"),
        "own address": reached("10.1.1.1"),
        "other node": reached("10.1.1.1", "other"),
        "neighbour": reached("10.1.1.1", "neighbour", {"root": 0}),
        "neighbour6": reached("fd00::1", "neighbour", {"root": 0}),
        "extra network": reached("10.1.2.1", "neighbour", {"root": 0}),
        "mptcp": connect(Client(PERSON, protocol=MPTCP), "127.0.0.1", 21000),
        "mptcp other": connect(Client(PERSON, "other", protocol=MPTCP), "10.1.1.1", 21000),
        "mptcp server": connect(Client(PERSON, protocol=MPTCP), "127.0.0.1", 21002),
        "stranger's port": connect(Client(PERSON, source=33333), "127.0.0.1", 21000),
        "its next user": connect(Client(JOB, source=33333), "127.0.0.1", 21000),
        "resvport": connect(Client(0, "other", source=1000), "10.1.1.1", 21000),
        "tables": subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout,
    }
    sys.stdout.write(json.dumps(answers))
    for server in servers:
        os.kill(server, signal.SIGKILL)


if __name__ == "__main__":
    main()
