"""Reads a stack's outputs and writes its SSH files. The results are cached, because `pulumi` takes a second."""

from __future__ import annotations

import getpass
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
"""Files in a stack's folder with the private keys of the job user and the admin, if yard uses these keys."""
ADMIN_CERTIFICATE = f"{ADMIN_KEY}-cert.pub"
"""The file in which ssh looks for the certificate of the admin's key."""
USER_VARIABLE = "TRAINYARD_USER"
"""Environment variable with the name of the person who uses yard."""
KEY_VARIABLE = "TRAINYARD_KEY"
"""Environment variable with the file of this person's private key. Without it, ssh uses its default files."""

Logins = Sequence[tuple[str, Sequence[str]]]

_SOCKET_PATH_LIMIT = 107
TUNNEL_LOG = "tunnel.log"
"""The relay records here why a tunnel failed, because ssh does not. A successful connection empties this file."""
_TUNNEL_SECONDS = 50
"""This time is longer than the relay's time limit, so that the relay writes the reason before ssh fails."""
RELAY = Path(trainyard.__file__).resolve().with_name("relay.py")
SOCKETS = Path.home() / ".yard"
"""Sockets of shared SSH connections. They are outside the checkout, because their paths are limited to 107 bytes."""
_FORMAT = 6
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


def ssh_config(cluster: Cluster, folder: str, control: str | None, logins: Logins) -> str:
    """Return the SSH configuration for the files in `folder`. `control` is the ControlPath of shared connections."""
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


def _logins(cluster: Cluster, folder: str, user: str, *, admin: bool) -> Logins:
    """Return the host name suffix and the configuration lines for each user.

    `user` is a person, or "" for the job user. A person's own key is the file in TRAINYARD_KEY. Without this variable,
    ssh uses its default files and the keys in the SSH agent. Without the admin's key in `folder`, a person who is an
    admin also logs in as the admin with the own key.
    """
    head, own_key = cluster.head, _own_key() or None
    own = own_key if user else f"{folder}/{USER_KEY}"
    key = own_key if user and not admin else f"{folder}/{ADMIN_KEY}"
    return [("", login_lines(user or head.user, own)), (ADMIN_SUFFIX, login_lines(head.admin_user, key))]


def login_lines(user: str, key: str | None) -> Sequence[str]:
    """Return the lines of the SSH configuration for a login with a key file or, if `key` is None, with own keys."""
    # ssh tries the IdentityFile of every matching block (ssh_config(5)), so `Host *` does not contain one.
    return (f"User {user}", "IdentitiesOnly no" if key is None else f'IdentityFile "{key}"')


def _blocks(host: Head | Node, address: str, port: int, logins: Logins, jump: Sequence[str]) -> str:
    reach = (f"HostName {address}", f"Port {port}", f"HostKeyAlias {host.name}", *jump)
    return "".join(_block(host.name + suffix, (*reach, *login)) for suffix, login in logins)


def _block(name: str, lines: Sequence[str]) -> str:
    return f"Host {name}\n" + "".join(f"  {line}\n" for line in lines) + "\n"


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A deployed stack. Its `folder` contains the SSH configuration, known hosts and private keys.

    `outputs` is the file that contains the outputs, or None if they came from Pulumi's backend. `login` is the name of
    the person who uses yard, or "" for the job user.
    """

    name: str
    cluster: Cluster
    folder: Path
    outputs: Path | None = None
    login: str = ""

    @property
    def ssh_config(self) -> Path:
        return self.folder / "config"

    @property
    def user(self) -> str:
        """The name of the account that runs jobs."""
        return self.login or self.cluster.head.user

    @property
    def jobs_path(self) -> str:
        """The folder that contains the run folders of this user's jobs."""
        return self.cluster.jobs_of(self.user)

    @property
    def files_path(self) -> str:
        """The folder for this user's other files: a person's home, which is private, or the shared path."""
        folder = self.cluster.folder_of(self.user)
        return f"{folder}/home" if self.login else folder

    @property
    def is_admin(self) -> bool:
        """Whether this user can read and cancel the jobs of all users."""
        return self.cluster.users.get(self.login) == "admin"

    @property
    def has_admin_login(self) -> bool:
        """Whether yard can log in as a user with sudo rights."""
        return self.is_admin or (self.folder / ADMIN_KEY).exists()


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
    chosen = os.environ.get(USER_VARIABLE, "")
    version += f":{chosen}:{_own_key()}"
    if not refresh and (cached := _cached(folder, version)) is not None:
        return Stack(name=name, cluster=cached[0], folder=folder, outputs=file, login=cached[1])
    outputs = _read_file(file) if file else _pulumi_outputs(name, environment)
    try:
        cluster = read_outputs(outputs.get("cluster"))
    except ContractError as error:
        # If the stack was destroyed, its cached files must not remain.
        forget(folder)
        raise ContractError(f"{file or f'stack {name}'}: {error}") from error
    login = _login(cluster, chosen or outputs.get("user", ""), has_key="user_private_key" in outputs)
    _write(folder, version, outputs, cluster, login)
    return Stack(name=name, cluster=cluster, folder=folder, outputs=file, login=login)


def _login(cluster: Cluster, chosen: object, *, has_key: bool) -> str:
    """Return the name of the person who uses yard, or "" for the job user. Raises StackError if it is unknown."""
    if chosen == cluster.head.user or (not chosen and (has_key or not cluster.users)):
        return ""
    name = chosen or getpass.getuser()
    if name not in cluster.users:
        raise StackError(
            f"cluster '{cluster.name}' has no user '{name}'; its users: {', '.join(cluster.users) or 'none'}. Fix: set "
            f"{USER_VARIABLE} to your name on the cluster, or ask an operator to add you to the stack file"
        )
    return str(name)


def _own_key() -> str:
    """Return the absolute path of the person's private key, or "" if none is set. Raises StackError without a file."""
    chosen = os.environ.get(KEY_VARIABLE, "")
    if not chosen:
        return ""
    file = Path(chosen).expanduser().absolute()
    if not file.is_file():
        raise StackError(f"{KEY_VARIABLE} names {chosen}, which is not a file. Fix: set it to your private SSH key")
    return str(file)


def save_for_jobs(stack: Stack, file: Path, user: str | None = None) -> None:
    """Write the outputs without the admin's key to a file that only its owner can read.

    If the cluster has people, the file contains no key, because they use their own keys, and `user` is the name of the
    person who uses it. Otherwise, it contains the job user's key. Raises StackError if the user does not exist or the
    file cannot be written.
    """
    outputs: dict[str, Any] = {"cluster": dumped(stack.cluster)}
    if user is not None:
        outputs["user"] = _login(stack.cluster, user, has_key=False)
    elif not stack.cluster.users:
        outputs["user_private_key"] = (stack.folder / USER_KEY).read_text()
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
    for name in ("config", "known_hosts", USER_KEY, ADMIN_KEY, ADMIN_CERTIFICATE, "outputs.json", TUNNEL_LOG):
        (folder / name).unlink(missing_ok=True)


def _version(file: Path) -> str:
    """Return a text that identifies the file's version. Every deployment changes the state file."""
    if not file.is_file():
        return f"{file}:absent"
    status = file.stat()
    return f"{file}:{status.st_mtime_ns}:{status.st_size}"


def _cached(folder: Path, version: str) -> tuple[Cluster, str] | None:
    """Return the cluster and the login from the cached files, or None if they are outdated."""
    try:
        cache = json.loads((folder / "outputs.json").read_text())
    except (OSError, ValueError):
        return None
    valid = cache.get("format") == _FORMAT and cache.get("source") == version
    if not valid or not (cache["login"] or (folder / USER_KEY).is_file()):
        return None
    return read_outputs(cache["cluster"]), cache["login"]


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
        # A project of one's own can have a stack of this name, but has no demo.
        is_demo = name == "local" and (project.ROOT / "tools" / "demo.py").exists()
        create = "make demo" if is_demo else f"pulumi stack select --create {name} && pulumi up -s {name}"
        is_missing = "no stack named" in reason
        fix = f"Fix: create it with `{create}`, or select" if is_missing else "You can select"
        raise StackError(f"pulumi cannot read stack '{name}': {reason}. {fix} a different stack with --stack")
    outputs: dict[str, Any] = json.loads(done.stdout)
    return outputs


def _write(folder: Path, version: str, outputs: Mapping[str, Any], cluster: Cluster, login: str) -> None:
    user, admin = (outputs.get(f"{name}_private_key") for name in ("user", "admin"))
    if not isinstance(user, str) and not login:
        raise StackError("the stack has no `user_private_key` output; run `pulumi up` on it")
    _create_private_folder(folder)
    # The .gitignore of a project that `yard new` did not create may not contain this folder.
    _replace(project.state() / ".gitignore", "*\n")
    # A person does not need the job user's key, and jobs do not need the admin's. Without a key, ssh cannot use it.
    keys = {USER_KEY: None if login else user, ADMIN_KEY: admin, ADMIN_CERTIFICATE: outputs.get("admin_certificate")}
    for name, key in keys.items():
        if isinstance(key, str):
            _replace(folder / name, key.rstrip("\n") + "\n")
        else:
            (folder / name).unlink(missing_ok=True)
    _replace(folder / "known_hosts", known_hosts(cluster))
    control = control_path(str(SOCKETS), str(folder))
    logins = _logins(cluster, str(folder), login, admin=isinstance(admin, str))
    _replace(folder / "config", ssh_config(cluster, str(folder), control, logins))
    # This file is written last, so if it exists, the other files also exist.
    cache = {"format": _FORMAT, "source": version, "cluster": dumped(cluster), "login": login}
    _replace(folder / "outputs.json", json.dumps(cache, indent=1) + "\n")


def _create_private_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _replace(path: Path, text: str) -> None:
    new = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    new.replace(path)
