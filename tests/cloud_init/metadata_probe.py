"""Prints as JSON which users in a network namespace can connect to a cloud's services.

test_stage_metadata.py runs the program as root. The argument is a file of nftables rules, or "-" for none. The
namespaces `box` (a container) and `cloud` must exist.
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

SERVICES = {
    "metadata": "169.254.169.254",
    "wire": "168.63.129.16",
    "metadata6": "fd20:ce::254",
    "elsewhere": "10.1.2.2",
}
MPTCP = 262
"""IPPROTO_MPTCP. The socket module does not define this constant."""
OWNERS_TABLE = "table inet owner { chain c { type filter hook output priority 0; }; }"


def enter(namespace: str) -> None:
    """Move this process to a network namespace. os.setns requires Python 3.12."""
    descriptor = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    if ctypes.CDLL(None).setns(descriptor, 0):
        raise OSError(f"setns {namespace}")


def family(address: str) -> socket.AddressFamily:
    """Return the address family."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def serve() -> None:
    """Listen on ports 80 and 53 at every service address until the process is killed."""
    enter("cloud")
    servers = [
        socket.create_server((address, port), family=family(address), backlog=64)
        for address in SERVICES.values()
        for port in (80, 53)
    ]
    while servers:
        signal.pause()


def connect(address: str, port: int, protocol: int) -> str:
    """Return "open", "refused" (within a second) or the error."""
    begin = time.monotonic()
    with socket.socket(family(address), socket.SOCK_STREAM, protocol) as client:
        client.settimeout(5)
        try:
            client.connect((address, port))
        except ConnectionRefusedError:
            return "refused" if time.monotonic() - begin < 1 else "refused late"
        except OSError as error:
            return str(error)
    return "open"


def send() -> str:
    """Return "open" if a datagram to port 53 can be sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        try:
            client.sendto(b"", (SERVICES["metadata"], 53))
        except OSError as error:
            return str(error)
    return "open"


def reached(uid: int, namespace: str = "", protocol: int = 0) -> dict[str, str]:
    """Connect to each service from a process with this uid. Return the results."""
    read, write = os.pipe()
    if os.fork() == 0:
        if namespace:
            enter(namespace)
        os.setgid(uid)
        os.setuid(uid)
        found = {name: connect(address, 80, protocol) for name, address in SERVICES.items()}
        found |= {"dns": connect(SERVICES["metadata"], 53, protocol), "udp": send()}
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        answers: dict[str, str] = json.load(answer)
    os.wait()
    return answers


def main() -> None:
    """Start the services, apply the rules twice, connect as several users, and print the results."""
    server = os.fork()
    if server == 0:
        serve()
    time.sleep(0.5)
    subprocess.run(["nft", OWNERS_TABLE], check=True)
    for _ in range(2):
        if sys.argv[1] != "-":
            subprocess.run(["nft", "-f", sys.argv[1]], check=True)
    answers: dict[str, object] = {
        "root": reached(0),
        "job": reached(2000),
        "other": reached(1001),
        "container": reached(0, "box"),
        "mptcp": reached(2000, protocol=MPTCP),
        "tables": subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout,
    }
    sys.stdout.write(json.dumps(answers))
    os.kill(server, signal.SIGKILL)


if __name__ == "__main__":
    main()
