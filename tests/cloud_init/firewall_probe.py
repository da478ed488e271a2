"""Prints as JSON which accounts and machines can connect to which services in a network namespace.

test_firewall.py runs the program as root. The first argument is "metadata" (in cloud_network.sh), "ports", "people"
or "daemons" (in cluster_network.sh). The second argument is a file of nftables rules, or "-" for none.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

MPTCP = 262
"""IPPROTO_MPTCP. The socket module does not define this constant."""
OWNERS_TABLE = "table inet owner { chain c { type filter hook output priority 0; }; }"
METADATA = {
    "metadata": "169.254.169.254",
    "wire": "168.63.129.16",
    "metadata6": "fd20:ce::254",
    "elsewhere": "10.1.2.2",
}
JOB, SLURM, DAEMON, PERSON, NOBODY, ANN, BOB = 2000, 64030, 101, 1001, 65534, 23870, 28650
SERVICES = {"job": (JOB, 21000), "rank": (JOB, 40000), "person": (PERSON, 21001), "low": (PERSON, 8080)}
CALLERS = {"root": 0, "job": JOB, "slurm": SLURM, "daemon": DAEMON, "person": PERSON, "nobody": NOBODY}
DAEMONS = {"ssh": (0, 22), "rpcbind": (0, 111), "nfs": (0, 2049), "slurmctld": (SLURM, 6817), "slurmd": (0, 6818)}
DATAGRAMS = {"dhcp": 68, "dhcp6": 546, "rpcbind": 111, "ntp": 123, "high": 40000}
"""Ports of UDP servers on the node."""
ECHO_REQUEST = bytes.fromhex("0800f7ff00000000")
"""An ICMP packet: the type, the code, the checksum, and zeros."""
RESOLVER = 53
"""Port of a UDP server on the neighbour."""
SECONDS = 2.0
"""How long a client waits for an answer. On a busy computer, a refusal can take more than half a second."""
BACKLOG = 64
"""The length of the servers' queues."""
OF_PEOPLE = {"ann": (ANN, 22000), "ann's low port": (ANN, 8888)}
"""Services of a user of a cluster with people."""


class Client(NamedTuple):
    """A process: its uid, the namespace of its machine, its own port or 0, and its protocol or 0.

    `is_answered`: whether it waits for the answer to a UDP packet.
    """

    uid: int
    namespace: str = ""
    source: int = 0
    protocol: int = 0
    is_answered: bool = False

    def become(self) -> None:
        """Change the current process. os.setns requires Python 3.12."""
        if self.namespace:
            descriptor = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
            if ctypes.CDLL(None).setns(descriptor, 0):
                raise OSError(f"setns {self.namespace}")
        os.setgid(self.uid)
        os.setuid(self.uid)


def serve(account: Client, port: int) -> int:
    """Listen on all addresses, like torch's store, in a child process."""
    child = os.fork()
    if child:
        return child
    account.become()
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, account.protocol) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("::", port))
        server.listen(BACKLOG)
        while True:
            server.accept()[0].close()


def serve_datagrams(account: Client, port: int) -> int:
    """Answer each UDP packet, in a child process."""
    child = os.fork()
    if child:
        return child
    account.become()
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as server:
        server.bind(("::", port))
        while True:
            server.sendto(b"answer", server.recvfrom(64)[1])


def start(client: Client, address: str, port: int) -> int:
    """Connect from a new process. Return a pipe for its answer."""
    read, write = os.pipe()
    if os.fork() == 0:
        client.become()
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
    return answer(start(client, address, port))


def attempt(client: Client, address: str, port: int) -> str:
    """Connect, or send a datagram, and return the result in one word."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kinds = {socket.IPPROTO_UDP: socket.SOCK_DGRAM, socket.IPPROTO_ICMP: socket.SOCK_RAW}
    kind = kinds.get(client.protocol, socket.SOCK_STREAM)
    with socket.socket(family, kind, client.protocol) as opened:
        opened.settimeout(SECONDS)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind(("", client.source))
            opened.connect((address, port))
            if kind == socket.SOCK_RAW:
                opened.send(ECHO_REQUEST)
                opened.recv(64)
            if kind == socket.SOCK_DGRAM:
                opened.send(b"")
                if client.is_answered:
                    opened.recv(64)
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "silent"
        except OSError as error:
            return str(error)
    return "open"


def reached(*places: tuple[str, str, str, Mapping[str, int]]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the results by place, service and caller.

    A place consists of its name, the node's address, the callers' namespace, and the callers. All callers connect at
    the same time, because many of them wait for an answer that does not come.
    """
    pipes = {
        place: {
            name: {caller: start(Client(uid, namespace), address, port) for caller, uid in callers.items()}
            for name, (_, port) in (SERVICES | (OF_PEOPLE if callers is PEOPLE else {})).items()
        }
        for place, address, namespace, callers in places
    }
    return {
        place: {name: {caller: answer(pipe) for caller, pipe in row.items()} for name, row in found.items()}
        for place, found in pipes.items()
    }


def start_flood(uid: int, namespace: str, address: str, port: int) -> int:
    """Open more connections at once than the server's queue of requests holds.

    Return a pipe for the number of connections that the server accepts.
    """
    read, write = os.pipe()
    if os.fork() == 0:
        Client(uid, namespace).become()
        attempts = [socket.socket() for _ in range(4 * BACKLOG)]
        for attempt in attempts:
            attempt.setblocking(False)
            attempt.connect_ex((address, port))
        time.sleep(SECONDS)
        os.write(write, str(sum(is_answered(attempt) for attempt in attempts)).encode())
        os._exit(0)
    os.close(write)
    return read


def flooded(*clients: tuple[int, str], port: int) -> list[int]:
    """Return how many of each client's connections the server accepts. The clients connect at the same time."""
    pipes = [start_flood(uid, namespace, "10.1.1.1", port) for uid, namespace in clients]
    return [int(answer(pipe)) for pipe in pipes]


def is_answered(opened: socket.socket) -> bool:
    """Return whether the server has accepted the connection, and closed it."""
    try:
        return opened.recv(1) == b""
    except OSError:
        return False


def start_asking(namespace: str, address: str, port: int, source: int = 0) -> int:
    """Send a UDP request from a new process. Return a pipe for its answer."""
    return start(Client(0, namespace, source, socket.IPPROTO_UDP, is_answered=True), address, port)


def start_daemons(namespace: str, address: str) -> dict[str, int]:
    """Connect as root on a machine to the node's daemons. Return pipes for the answers."""
    found = {name: start(Client(0, namespace), address, port) for name, (_, port) in DAEMONS.items()}
    # A DHCP server uses its own port. Another source port must not reach the client's port.
    sources = {"dhcp": 67, "dhcp6": 547}
    for name, port in DATAGRAMS.items():
        found[f"{name}/udp"] = start_asking(namespace, address, port, sources.get(name, 0))
    return found | {"dhcp from elsewhere": start_asking(namespace, address, DATAGRAMS["dhcp"])}


def of_daemons() -> dict[str, object]:
    """Return the results for the node's daemons by place, and those of the node's own connections to the outside.

    Many clients wait for an answer that does not come, so they wait at the same time. Clients that use the same port on
    the same machine are in different rounds.
    """
    rounds = (
        {"loopback": ("", "127.0.0.1"), "other node": ("other", "10.1.1.1"), "neighbour": ("neighbour", "10.1.1.1")},
        {"own address": ("", "10.1.1.1"), "neighbour6": ("neighbour", "fd00::1")},
        {"extra network": ("neighbour", "10.1.2.1")},
    )
    found: dict[str, object] = {}
    for places in rounds:
        pipes = {place: start_daemons(*where) for place, where in places.items()}
        found |= {place: {name: answer(pipe) for name, pipe in row.items()} for place, row in pipes.items()}
    others = {
        "ping": start(Client(0, "neighbour", protocol=socket.IPPROTO_ICMP), "10.1.1.1", 0),
        "outwards": start(Client(PERSON), "10.1.1.3", 443),
        "outwards6": start(Client(PERSON), "fd00::3", 443),
        "resolver": start_asking("", "10.1.1.3", RESOLVER),
        "resolver6": start_asking("", "fd00::3", RESOLVER),
    }
    return (
        found
        | {name: answer(pipe) for name, pipe in others.items()}
        | {"answer from elsewhere": answer_from_elsewhere()}
    )


def answer_from_elsewhere() -> str:
    """Return "open" if the node receives a packet of the neighbour that is not from the port that the node asked."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.bind(("10.1.1.1", 0))
        asked.settimeout(0.5)
        asked.sendto(b"", ("10.1.1.3", 1))
        connect(Client(0, "neighbour", RESOLVER + 1, socket.IPPROTO_UDP), "10.1.1.1", asked.getsockname()[1])
        try:
            asked.recv(64)
        except TimeoutError:
            return "silent"
    return "open"


PEOPLE = CALLERS | {"ann": ANN, "bob": BOB}


ROOT = {"root": 0}
EXTRA = (
    ("neighbour", "10.1.1.1", "neighbour", ROOT),
    ("neighbour6", "fd00::1", "neighbour", ROOT),
    ("extra network", "10.1.2.1", "neighbour", ROOT),
    ("extra network6", "fd01::1", "neighbour", ROOT),
)


def nodes(callers: Mapping[str, int]) -> Iterator[tuple[str, str, str, Mapping[str, int]]]:
    """Yield the places from which a node of the cluster connects."""
    for place, address in (("loopback", "127.0.0.1"), ("loopback6", "::1"), ("own address", "10.1.1.1")):
        yield place, address, "", callers
    yield "other node", "10.1.1.1", "other", callers


def from_same_port(who: int) -> list[str]:
    """Return the results of a user's connections from both nodes, from a port that another user may have just used."""
    pipes = [start(Client(who, where, source=33333), "10.1.1.1", 22000) for where in ("", "other")]
    return [answer(pipe) for pipe in pipes]


def of_people() -> dict[str, object]:
    """Return the results for the ports of people, by place."""
    return {
        **reached(*nodes(PEOPLE), *EXTRA),
        "flooded": flooded((BOB, ""), (BOB, "other"), port=22000),
        "flooded by root": flooded((0, "other"), port=22000)[0] > BACKLOG,
        "same port": [found for who in (BOB, ANN) for found in from_same_port(who)],
    }


def reached_metadata(client: Client) -> dict[str, str]:
    found = {name: connect(client, address, 80) for name, address in METADATA.items()}
    datagram = client._replace(protocol=socket.IPPROTO_UDP)
    found["dns"], found["udp"] = (connect(by, METADATA["metadata"], 53) for by in (client, datagram))
    return found


def of_metadata() -> dict[str, object]:
    clients = {
        "root": Client(0),
        "job": Client(JOB),
        "other": Client(PERSON),
        "container": Client(0, "box"),
        "mptcp": Client(JOB, protocol=MPTCP),
    }
    return {name: reached_metadata(client) for name, client in clients.items()}


def of_ports() -> dict[str, object]:
    """Return the results for the ports of a job and of other programs, by place."""
    mptcp = {
        "mptcp": start(Client(PERSON, protocol=MPTCP), "127.0.0.1", 21000),
        "mptcp other": start(Client(PERSON, "other", protocol=MPTCP), "10.1.1.1", 21000),
        "mptcp server": start(Client(PERSON, protocol=MPTCP), "127.0.0.1", 21002),
    }
    return {
        **reached(*nodes(CALLERS), *EXTRA),
        "flooded": flooded((PERSON, ""), (0, "neighbour"), port=21000),
        **{name: answer(pipe) for name, pipe in mptcp.items()},
        "stranger's port": connect(Client(PERSON, source=33333), "127.0.0.1", 21000),
        "its next user": connect(Client(JOB, source=33333), "127.0.0.1", 21000),
        "resvport": connect(Client(0, "other", source=1000), "10.1.1.1", 21000),
    }


def main(kind: str, rules: str) -> None:
    """Start the services, apply the rules twice, connect, and print the results."""
    if kind == "daemons":
        servers = [serve(Client(uid), port) for uid, port in DAEMONS.values()]
        servers += [serve_datagrams(Client(0), port) for port in DATAGRAMS.values()]
        servers += [serve(Client(0, "neighbour"), 443), serve_datagrams(Client(0, "neighbour"), RESOLVER)]
    elif kind == "metadata":
        servers = [serve(Client(0, "cloud"), port) for port in (80, 53)]
    else:
        servers = [serve(Client(uid), port) for uid, port in (SERVICES | OF_PEOPLE).values()]
        servers.append(serve(Client(JOB, protocol=MPTCP), 21002))
    time.sleep(0.5)
    subprocess.run(["nft", OWNERS_TABLE], check=True)
    for _ in range(2 if rules != "-" else 0):
        subprocess.run(["nft", "-f", rules], check=True)
        if kind != "metadata":
            subprocess.run(["ip", "netns", "exec", "other", "nft", "-f", rules], check=True)
    found = {"metadata": of_metadata, "ports": of_ports, "people": of_people, "daemons": of_daemons}[kind]()
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    sys.stdout.write(json.dumps({**found, "tables": tables}))
    for server in servers:
        os.kill(server, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
