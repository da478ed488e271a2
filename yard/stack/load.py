"""Reads a stack's outputs and writes its SSH files. The results are cached, because `pulumi` takes a second."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import trainyard
from trainyard import project
from trainyard.errors import ContractError, StackError
from trainyard.outputs import Cluster, Head, Node, dumped, read_outputs
from yard.show import warn
from yard.stack import pulumi
from yard.stack.pulumi import backend_url, state_file

ADMIN_SUFFIX = "-admin"
"""`ssh yard-head-admin` logs in to the host yard-head as the admin."""
USER_KEY, ADMIN_KEY = "id_ed25519", "id_ed25519_admin"
"""Files in a stack's folder with the private keys of the job user and, if there is one, of the admin."""

Logins = Sequence[tuple[str, Sequence[str]]]

_SOCKET_PATH_LIMIT = 107
TUNNEL_LOG = "tunnel.log"
"""The relay records here why a tunnel failed, because ssh does not. A successful connection empties this file."""
_TUNNEL_SECONDS = 50
"""This time is longer than the relay's time limit, so that the relay writes the reason before ssh fails."""
RELAY = Path(trainyard.__file__).resolve().with_name("relay.py")
SOCKETS = Path.home() / ".yard"
"""Sockets of shared SSH connections. They are outside the checkout, because their paths are limited to 107 bytes."""
_FORMAT = 3
"""Version of the cached files. Files of another version are rewritten."""
_FIX = (
    "Fix: an operator of the cluster writes the file with `yard refresh --save FILE`, or with "
    "`pulumi stack output --json --show-secrets -s STACK`"
)
_HIDDEN = "[secret]"
"""`pulumi stack output` prints this text instead of a secret, unless --show-secrets is set."""
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"
_STACK_NAME = re.compile(f"{_PART}(/{_PART}){{0,2}}")


def known_hosts(cluster: Cluster) -> str:
    """Return the text of the known_hosts file, which contains host names but no addresses or ports."""
    keys = {cluster.head.name: cluster.head.host_key, **{node.name: node.host_key for node in cluster.nodes}}
    return "".join(f"{name} {key}\n" for name, key in keys.items())


def control_path(sockets: str, folder: str) -> str | None:
    """Return the ControlPath for the stack in `folder`, or None if it is too long for a socket.

    Only the user must be able to write to `sockets`. In /tmp, another user could create a socket with the name of a
    closed connection, and ssh would then send commands to this socket.
    """
    path = f"{sockets}/{hashlib.sha256(folder.encode()).hexdigest()[:8]}-%C"
    # ssh replaces %C with 40 characters, and temporarily appends 17 characters when it creates the socket.
    return path if len(path.encode()) - len("%C") + 40 + 17 <= _SOCKET_PATH_LIMIT else None


def ssh_config(cluster: Cluster, folder: str, control: str | None) -> str:
    """Return the SSH configuration for the keys in `folder`. `control` is the ControlPath of shared connections."""
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
        # A percent sign would start a token (ssh_config(5)).
        return (f"ProxyCommand {shlex.join(relay).replace('%', '%%')}", f"ConnectTimeout {_TUNNEL_SECONDS}")
    if head.proxy_jump:
        # ProxyJump would use this configuration, but the proxy needs the user's own keys and known hosts.
        return (f"ProxyCommand ssh -W [%h]:%p ssh://{head.proxy_jump}",)
    return ()


def _logins(head: Head, folder: str) -> Logins:
    """Return the host name suffix and the configuration lines for each user."""
    # ssh tries the IdentityFile of every matching block (ssh_config(5)), so `Host *` does not contain one.
    users = (("", head.user, USER_KEY), (ADMIN_SUFFIX, head.admin_user, ADMIN_KEY))
    return [(suffix, (f"User {user}", f'IdentityFile "{folder}/{key}"')) for suffix, user, key in users]


def _blocks(host: Head | Node, address: str, port: int, logins: Logins, jump: Sequence[str]) -> str:
    reach = (f"HostName {address}", f"Port {port}", f"HostKeyAlias {host.name}", *jump)
    return "".join(_block(host.name + suffix, (*reach, *login)) for suffix, login in logins)


def _block(name: str, lines: Sequence[str]) -> str:
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A deployed stack. Its `folder` contains the SSH configuration, known hosts and private keys.

    `outputs` is the file that contains the outputs, or None if they came from Pulumi's backend.
    """

    name: str
    cluster: Cluster
    folder: Path
    outputs: Path | None = None

    @property
    def ssh_config(self) -> Path:
        return self.folder / "config"


def load_stack(name: str, *, refresh: bool = False, file: Path | None = None) -> Stack:
    """Return a stack. Its outputs come from `file`, or from Pulumi if `file` is None.

    The cached files are used until the outputs change or `refresh` is set. Raises StackError if the outputs cannot be
    read, and ContractError if they are invalid.
    """
    if not _STACK_NAME.fullmatch(name):
        raise StackError(f"'{name}' is not a stack name; use letters, digits, '.', '_' and '-'")
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12] if file else ""
    folder = project.state() / "ssh" / (f"file-{digest}" if file else name.replace("/", "-"))
    _create_private_folder(SOCKETS)
    environment = {} if file else pulumi.environment()
    state = file.resolve() if file else state_file(environment, name)
    version = _version(state) if state else backend_url(environment)
    if not refresh and (cached := _cached(folder, version)) is not None:
        return Stack(name=name, cluster=cached, folder=folder, outputs=file)
    outputs = _read_file(file) if file else _pulumi_outputs(name, environment)
    try:
        cluster = read_outputs(outputs.get("cluster"))
    except ContractError as error:
        # If the stack was destroyed, its cached files must not remain.
        forget(folder)
        raise ContractError(f"{file or f'stack {name}'}: {error}") from error
    _write(folder, version, outputs, cluster)
    return Stack(name=name, cluster=cluster, folder=folder, outputs=file)


def save_for_jobs(stack: Stack, file: Path) -> None:
    """Write the outputs with the job user's key, but without the admin's key, to a file that only its owner can read.

    Raises StackError if the file cannot be written.
    """
    outputs = {"cluster": dumped(stack.cluster), "user_private_key": (stack.folder / USER_KEY).read_text()}
    try:
        _replace(file, json.dumps(outputs, indent=1) + "\n")
    except OSError as error:
        raise StackError(
            f"{file} cannot be written: {error.strerror}. Fix: name a file in an existing folder"
        ) from error


def forget(folder: Path) -> None:
    """Close a stack's shared connections and remove its cached files, if there are any."""
    config = folder / "config"
    control = re.search(r"(?m)^ *ControlPath (.+)%C$", config.read_text()) if config.is_file() else None
    for socket in glob(f"{control[1]}*") if control else ():
        command = ["ssh", "-F", "/dev/null", "-o", f"ControlPath={socket}", "-O", "exit", "any"]
        subprocess.run(command, capture_output=True, check=False)
    for name in ("config", "known_hosts", USER_KEY, ADMIN_KEY, "outputs.json", TUNNEL_LOG):
        (folder / name).unlink(missing_ok=True)


def _version(file: Path) -> str:
    """Return a text that identifies the file's version. Every deployment changes the state file."""
    if not file.is_file():
        return f"{file}:absent"
    status = file.stat()
    return f"{file}:{status.st_mtime_ns}:{status.st_size}"


def _cached(folder: Path, version: str) -> Cluster | None:
    try:
        cache = json.loads((folder / "outputs.json").read_text())
    except (OSError, ValueError):
        return None
    valid = cache.get("format") == _FORMAT and cache.get("source") == version and (folder / USER_KEY).is_file()
    return read_outputs(cache["cluster"]) if valid else None


def _read_file(file: Path) -> dict[str, Any]:
    """Return the outputs, and warn if other users can read the file's private keys. Raises StackError."""
    try:
        outputs = json.loads(file.read_text())
        others = file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    except (OSError, ValueError) as error:
        raise StackError(f"{file} cannot be read: {error}. {_FIX}") from error
    if not isinstance(outputs, dict):
        raise StackError(f"{file} is not a JSON object. {_FIX}")
    keys = [value for name, value in outputs.items() if name.endswith("_private_key")]
    if _HIDDEN in keys:
        raise StackError(f"{file} contains no private keys, only '{_HIDDEN}'. {_FIX}")
    if keys and others:
        warn(f"yard: {file} contains private keys, and other users can access it; run `chmod 600 {file}`")
    return outputs


def _pulumi_outputs(name: str, environment: Mapping[str, str]) -> dict[str, Any]:
    words = ["stack", "output", "--json", "--show-secrets", "--non-interactive", "-s", name]
    done = pulumi.run(words, environment)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("error:")] or done.stderr.splitlines()
        reason = lines[-1].removeprefix("error: ") if lines else "it printed no error message"
        raise StackError(
            f"pulumi cannot read stack '{name}': {reason}; deploy it first, or select a different stack with --stack"
        )
    outputs: dict[str, Any] = json.loads(done.stdout)
    return outputs


def _write(folder: Path, version: str, outputs: Mapping[str, Any], cluster: Cluster) -> None:
    user, admin = (outputs.get(f"{name}_private_key") for name in ("user", "admin"))
    if not isinstance(user, str):
        raise StackError("the stack has no `user_private_key` output; run `pulumi up` on it")
    _create_private_folder(folder)
    # The .gitignore of a project that `yard new` did not create may not contain this folder.
    _replace(project.state() / ".gitignore", "*\n")
    _replace(folder / USER_KEY, user.rstrip("\n") + "\n")
    if isinstance(admin, str):
        _replace(folder / ADMIN_KEY, admin.rstrip("\n") + "\n")
    else:
        # Jobs do not need the admin's key. Without this key, ssh cannot log in as the admin.
        (folder / ADMIN_KEY).unlink(missing_ok=True)
    _replace(folder / "known_hosts", known_hosts(cluster))
    _replace(folder / "config", ssh_config(cluster, str(folder), control_path(str(SOCKETS), str(folder))))
    # This file is written last, so if it exists, the other files also exist.
    cache = {"format": _FORMAT, "source": version, "cluster": dumped(cluster)}
    _replace(folder / "outputs.json", json.dumps(cache, indent=1) + "\n")


def _create_private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
