"""Prints as JSON which connections between a machine with rules and its neighbour are possible.

test_firewall.py runs the program in new namespaces. The argument is a file with the input of nft.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

MACHINE, NEIGHBOUR = "10.77.0.4", "10.77.2.1"
MAC = "52:54:00:12:34:56"
PORTS = (22, 80)
SECONDS = 0.3
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_LIBC = ctypes.CDLL(None, use_errno=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _open_namespace() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY)


@contextmanager
def _within(namespace: int) -> Iterator[None]:
    """Create sockets in another network namespace. os.setns requires Python 3.12."""
    own = _open_namespace()
    assert _LIBC.setns(namespace, _NEW_NETWORK) == 0
    yield
    assert _LIBC.setns(own, _NEW_NETWORK) == 0


def _socket(namespace: int, kind: socket.SocketKind, port: int = 0) -> socket.socket:
    with _within(namespace):
        made = socket.socket(socket.AF_INET, kind)
    made.settimeout(SECONDS)
    made.bind(("", port))
    return made


def _tcp(client: int, server: int, address: str, port: int) -> bool:
    with _socket(server, socket.SOCK_STREAM, port) as listener, _socket(client, socket.SOCK_STREAM) as caller:
        listener.listen()
        try:
            caller.connect((address, port))
        except TimeoutError:
            return False
        with closing(listener.accept()[0]) as accepted:
            accepted.sendall(b"answer")
            return caller.recv(6) == b"answer"


def _udp(client: int, server: int, address: str, port: int) -> bool:
    with _socket(server, socket.SOCK_DGRAM, port) as listener, _socket(client, socket.SOCK_DGRAM) as caller:
        try:
            caller.sendto(b"request", (address, port))
            _, sender = listener.recvfrom(7)
            listener.sendto(b"answer", sender)
            return caller.recv(6) == b"answer"
        except (TimeoutError, PermissionError):  # a packet that a rule drops causes EPERM at its sender
            return False


def main(rules: str) -> None:
    machine = _open_namespace()
    _ip("link", "add", "card", "address", MAC, "type", "veth", "peer", "name", "other")
    assert _LIBC.unshare(_NEW_NETWORK) == 0
    neighbour = _open_namespace()
    with _within(machine):
        _ip("link", "set", "other", "netns", f"/proc/{os.getpid()}/fd/{neighbour}")
        _ip("address", "add", f"{MACHINE}/20", "dev", "card")
        _ip("link", "set", "card", "up")
    _ip("address", "add", f"{NEIGHBOUR}/20", "dev", "other")
    _ip("link", "set", "other", "up")
    # The first packets of a new link can be lost.
    while not _udp(neighbour, machine, MACHINE, PORTS[0]):
        pass
    with _within(machine):
        subprocess.run(["nft", "--file", rules], check=True)
    found = {}
    for name, connect in (("tcp", _tcp), ("udp", _udp)):
        for port in PORTS:
            found[f"{name} {port} in"] = connect(neighbour, machine, MACHINE, port)
            found[f"{name} {port} out"] = connect(machine, neighbour, NEIGHBOUR, port)
    sys.stdout.write(json.dumps([connection for connection, possible in found.items() if possible]))


if __name__ == "__main__":
    main(sys.argv[1])
