"""Renders a cluster's SSH configuration for yard, `ssh -F`, rsync and editors."""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import trainyard
from trainyard.outputs import Cluster, Head, Node

ADMIN_SUFFIX = "-admin"
"""`ssh yard-head-admin` logs in to the host yard-head as the admin."""
USER_KEY = "id_ed25519"
ADMIN_KEY = "id_ed25519_admin"
"""Private key files of the job user and the admin in a stack's folder. The admin's key is optional."""

Logins = Sequence[tuple[str, Sequence[str]]]

_SOCKET_PATH_LIMIT = 107
TUNNEL_LOG = "tunnel.log"
"""File that contains the reason for the last tunnel failure, because ssh does not print it. It is empty after a
successful connection.
"""
_TUNNEL_SECONDS = 50
"""Longer than the time limit of the relay, so that the relay writes the reason before ssh fails."""
RELAY = Path(trainyard.__file__).resolve().with_name("relay.py")


def host_names(cluster: Cluster) -> list[str]:
    """Return the host names without the admin's suffix. The head is first."""
    return list(cluster.addresses)


def known_hosts(cluster: Cluster) -> str:
    """Return the text of the known_hosts file. It contains host names but no addresses or ports."""
    keys = {cluster.head.name: cluster.head.host_key, **{node.name: node.host_key for node in cluster.nodes}}
    return "".join(f"{name} {key}\n" for name, key in keys.items())


def control_path(sockets: str, folder: str) -> str | None:
    """Return the ControlPath for the stack in `folder`, or None if the path is too long for a socket.

    Only the user may have write access to `sockets`. In /tmp, another user could create a socket with the name of a
    closed connection, and ssh would send commands to that socket.
    """
    path = f"{sockets}/{hashlib.sha256(folder.encode()).hexdigest()[:8]}-%C"
    # ssh replaces %C with 40 characters, and appends 17 characters while it creates the socket.
    return path if len(path.encode()) - len("%C") + 40 + 17 <= _SOCKET_PATH_LIMIT else None


def ssh_config(cluster: Cluster, folder: str, control: str | None) -> str:
    """Return the SSH configuration. `folder` contains the keys. `control` is the ControlPath for shared connections."""
    sharing = ("ControlMaster auto", f"ControlPath {control}", "ControlPersist 10m") if control else ()
    common = _block(
        "*",
        (
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
    logins = _logins(head, folder)
    blocks = [_blocks(head, head.address, head.port, logins, _proxy(head, folder))]
    for node in cluster.nodes:
        direct = node.address is not None
        address, port = (node.address or node.private_ip), (node.port if direct else 22)
        blocks.append(_blocks(node, address, port, logins, () if direct else (f"ProxyJump {head.name}",)))
    return "# Written by yard. It is written again when the stack's outputs change.\n" + "".join(blocks) + common


def _proxy(head: Head, folder: str) -> Sequence[str]:
    if head.tunnel:
        relay = (sys.executable, "-I", str(RELAY), "stdio", f"{folder}/{TUNNEL_LOG}", *head.tunnel)
        # A percent sign starts a token (ssh_config(5)).
        return (f"ProxyCommand {shlex.join(relay).replace('%', '%%')}", f"ConnectTimeout {_TUNNEL_SECONDS}")
    if head.proxy_jump:
        # ProxyJump would use this configuration. The proxy needs the user's own keys and known hosts.
        return (f"ProxyCommand ssh -W [%h]:%p ssh://{head.proxy_jump}",)
    return ()


def _logins(head: Head, folder: str) -> Logins:
    """Return the name suffix and the configuration lines for each user.

    ssh tries the IdentityFile of every matching block (ssh_config(5)), so `Host *` does not set IdentityFile.
    """
    users = (("", head.user, USER_KEY), (ADMIN_SUFFIX, head.admin_user, ADMIN_KEY))
    return [(suffix, (f"User {user}", f'IdentityFile "{folder}/{key}"')) for suffix, user, key in users]


def _blocks(host: Head | Node, address: str, port: int, logins: Logins, jump: Sequence[str]) -> str:
    reach = (f"HostName {address}", f"Port {port}", f"HostKeyAlias {host.name}", *jump)
    return "".join(_block(host.name + suffix, (*reach, *login)) for suffix, login in logins)


def _block(name: str, lines: Sequence[str]) -> str:
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines) + "\n"
