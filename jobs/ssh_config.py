"""The ssh configuration of a cluster, so that yard, plain `ssh -F`, rsync and editors reach its hosts alike. Pure."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from jobs.facts import Cluster, Head, Node

ADMIN_SUFFIX = "-admin"
"""`ssh yard-head-admin` is yard-head as the user with sudo."""

_SOCKET_PATH_LIMIT = 107
TUNNEL_LOG = "tunnel.log"
"""Why the last tunnel could not be opened; ssh hides what a ProxyCommand prints. Empty after a success."""
_TUNNEL_SECONDS = 50
"""Longer than the relay tries, so that its reason is known when ssh gives up."""
RELAY = Path(__file__).resolve().parent.parent / "components" / "relay.py"


def host_names(cluster: Cluster) -> list[str]:
    """Return the names that ssh knows, head first, without the admin aliases."""
    return list(cluster.addresses)


def known_hosts(cluster: Cluster) -> str:
    """Return the known_hosts file: each host's key under its name, whatever port or address it is reached at."""
    keys = {cluster.head.name: cluster.head.host_key, **{node.name: node.host_key for node in cluster.nodes}}
    return "".join(f"{name} {key}\n" for name, key in keys.items())


def control_path(sockets: str, folder: str) -> str | None:
    """Return where ssh puts the shared connections of the stack in `folder`, or None if such a path is too long.

    `sockets` is a folder that only the user can write to: in /tmp another user could listen under the name of a
    connection that has ended, and ssh would send its commands there.
    """
    path = f"{sockets}/{hashlib.sha256(folder.encode()).hexdigest()[:8]}-%C"
    # %C has 40 characters, ssh appends 17 while it makes the socket, and the kernel takes 107.
    return path if len(path.encode()) - len("%C") + 40 + 17 <= _SOCKET_PATH_LIMIT else None


def ssh_config(cluster: Cluster, folder: str, control: str | None) -> str:
    """Return the configuration; `folder` holds id_ed25519 and known_hosts. None for `control` shares no connection."""
    sharing = ("ControlMaster auto", f"ControlPath {control}", "ControlPersist 10m") if control else ()
    common = _block(
        "*",
        (
            f'IdentityFile "{folder}/id_ed25519"',
            "IdentitiesOnly yes",
            f'UserKnownHostsFile "{folder}/known_hosts"',
            "GlobalKnownHostsFile /dev/null",
            "StrictHostKeyChecking yes",
            "UpdateHostKeys no",
            "PreferredAuthentications publickey",
            "ConnectTimeout 30",
            "ServerAliveInterval 10",
            "ServerAliveCountMax 3",
            *sharing,
            "LogLevel ERROR",
        ),
    )
    head = cluster.head
    blocks = [_pair(head, head.address, head.port, cluster, _way_to(head, folder))]
    for node in cluster.nodes:
        direct = node.address is not None
        address, port = (node.address or node.private_ip), (node.port if direct else 22)
        blocks.append(_pair(node, address, port, cluster, () if direct else (f"ProxyJump {head.name}",)))
    return "# Written by yard from the stack's outputs; it is renewed when they change.\n" + "".join(blocks) + common


def _way_to(head: Head, folder: str) -> Sequence[str]:
    if head.tunnel:
        relay = (sys.executable, "-I", str(RELAY), "stdio", f"{folder}/{TUNNEL_LOG}", *head.tunnel)
        # A percent sign begins a token of ssh's own.
        return (f"ProxyCommand {shlex.join(relay).replace('%', '%%')}", f"ConnectTimeout {_TUNNEL_SECONDS}")
    if head.proxy_jump:
        # Not ProxyJump: the proxy is not part of the cluster, so the user's own keys and known hosts are used there.
        return (f"ProxyCommand ssh -W [%h]:%p ssh://{head.proxy_jump}",)
    return ()


def _pair(host: Head | Node, address: str, port: int, cluster: Cluster, jump: Sequence[str]) -> str:
    reach = (f"HostName {address}", f"Port {port}", f"HostKeyAlias {host.name}", *jump)
    return _block(host.name, (*reach, f"User {cluster.head.user}")) + _block(
        host.name + ADMIN_SUFFIX, (*reach, f"User {cluster.head.admin_user}")
    )


def _block(name: str, lines: Sequence[str]) -> str:
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines) + "\n"
