"""Where a command runs: the `connection` property as a value, and as an ssh_config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from offline.resources import ResourceError
from offline.values import Value, reveal

PEER = "peer"
"""The machine's name in the generated ssh_config, so that no address or user stands in a process's arguments."""
_PROXY = "proxy"
_CONNECTED_WORD = "connected"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

# ssh_config has no way to quote a quote, and expands % and $ in some of these places.
_UNSAFE = re.compile(r"[\"\\$%\s\x00-\x1f\x7f]")
_HOST_KEY = re.compile(r"[a-z0-9@.-]+ [A-Za-z0-9+/]+=*")

# A machine that stops answering is given up after a minute: an emulated one may well be silent for half of that.
_ALIVE_SECONDS = 15
_ALIVE_COUNT = 4


@dataclass(frozen=True)
class Endpoint:
    """One ssh server and how to log in to it. Hashable: equal endpoints share a connection."""

    host: str
    user: str
    port: int
    private_key: str = field(repr=False)
    agent: str
    host_key: str
    dial_error_limit: int
    per_dial_seconds: int


@dataclass(frozen=True)
class Connection:
    """An endpoint, reached directly or through another."""

    endpoint: Endpoint
    proxy: Endpoint | None

    @property
    def dial_error_limit(self) -> int:
        """How many attempts may fail; below 0 without limit. One attempt covers both hops, so both limits count."""
        limits = [hop.dial_error_limit for hop in (self.endpoint, self.proxy) if hop]
        return -1 if min(limits) < 0 else sum(limits)


def connection(value: Value) -> Connection:
    """Read the checked `connection` property. Raises ResourceError for what no ssh_config can say."""
    plain = reveal(value)
    if not isinstance(plain, dict):
        raise ResourceError("connection: must be an object with at least host")
    proxy = plain.get("proxy")
    hop = _endpoint(proxy, "connection.proxy") if isinstance(proxy, dict) else None
    return Connection(_endpoint(plain, "connection"), hop)


def _endpoint(plain: Mapping[str, Value], path: str) -> Endpoint:
    for name in ("password", "privateKeyPassword"):
        if plain.get(name):
            raise ResourceError(f"{path}.{name}: the stand-in logs in with keys only. Fix: give privateKey instead")
    return Endpoint(
        host=_safe(plain, "host", path),
        user=_safe(plain, "user", path, "root"),
        port=_whole(plain, "port", 22),
        private_key=_text(plain, "privateKey"),
        agent=_safe(plain, "agentSocketPath", path),
        host_key=_host_key(_text(plain, "hostKey"), path),
        dial_error_limit=_whole(plain, "dialErrorLimit", 10),
        per_dial_seconds=_whole(plain, "perDialTimeout", 15),
    )


def _text(plain: Mapping[str, Value], name: str) -> str:
    value = plain.get(name)
    return value if isinstance(value, str) else ""


def _whole(plain: Mapping[str, Value], name: str, default: int) -> int:
    value = plain.get(name)
    return int(value) if isinstance(value, float | int) else default


def _safe(plain: Mapping[str, Value], name: str, path: str, default: str = "") -> str:
    value = _text(plain, name) or default
    if _UNSAFE.search(value):
        raise ResourceError(f"{path}.{name}: may not hold spaces, quotes, backslashes, % or $. Fix: give it without")
    return value


def _host_key(text: str, path: str) -> str:
    """Return type and key of a public key line, without its comment."""
    found = _HOST_KEY.match(text.strip())
    if text and not found:
        raise ResourceError(f"{path}.hostKey: must be a public key line such as `ssh-ed25519 AAAA...`. Fix: give that")
    return found.group() if found else ""


def write_config(folder: Path, where: Connection, default_agent: str) -> Path:
    """Write the ssh_config for `ssh PEER` into `folder`, with keys and known hosts beside it.

    The client becomes the master of folder/"mux" and prints one line once it is logged in. Remove the keys then
    (remove_keys): nothing needs them any longer.
    """
    hop = where.proxy
    seconds = where.endpoint.per_dial_seconds
    master = [
        "ControlMaster yes",
        f'ControlPath "{folder}/mux"',
        "PermitLocalCommand yes",
        f"LocalCommand echo {_CONNECTED_WORD}",
    ]
    if hop:
        master.append(f"ProxyJump {_PROXY}")
        seconds = seconds + hop.per_dial_seconds if seconds and hop.per_dial_seconds else 0
    lines = [*_block(folder, PEER, where.endpoint, seconds, default_agent), *master]
    if hop:
        lines += _block(folder, _PROXY, hop, hop.per_dial_seconds, default_agent)
    lines += _key_exchange(hop or where.endpoint)  # of the last block: the hop that we dial ourselves
    config = folder / "config"
    _write(config, "\n".join([*lines, *_ALWAYS, ""]))
    return config


def remove_keys(folder: Path) -> None:
    """Remove the private keys that write_config left."""
    for key in folder.glob("*.key"):
        key.unlink(missing_ok=True)


_ALWAYS = (
    "Host *",
    "BatchMode yes",
    "PreferredAuthentications publickey",
    "ConnectionAttempts 1",
    f"ServerAliveInterval {_ALIVE_SECONDS}",
    f"ServerAliveCountMax {_ALIVE_COUNT}",
    "TCPKeepAlive yes",
    "GlobalKnownHostsFile /dev/null",
    "CheckHostIP no",
    "UpdateHostKeys no",
    "ForwardAgent no",
    "LogLevel ERROR",
)


def _block(folder: Path, name: str, hop: Endpoint, seconds: int, default_agent: str) -> Iterator[str]:
    yield f"Host {name}"
    yield f'HostName "{hop.host}"'
    yield f'User "{hop.user}"'
    yield f"Port {hop.port}"
    yield f"HostKeyAlias {name}"
    if seconds > 0:
        yield f"ConnectTimeout {seconds}"
    yield from _host_check(folder, name, hop)
    yield from _login(folder, name, hop, default_agent)


def _key_exchange(first: Endpoint) -> tuple[str, ...]:
    """Prefer the quick key exchange on the way to a machine behind loopback: an emulated one.

    The default also withstands a later quantum computer, of whoever records the traffic now. Nobody records this, and
    it doubles the time of a login.
    """
    return ("KexAlgorithms ^curve25519-sha256",) if first.host in _LOOPBACK else ()


def _host_check(folder: Path, name: str, hop: Endpoint) -> Iterator[str]:
    if not hop.host_key:
        yield "StrictHostKeyChecking no"
        yield "UserKnownHostsFile /dev/null"
        return
    _write(folder / f"{name}.hosts", f"{name} {hop.host_key}\n")
    yield "StrictHostKeyChecking yes"
    yield f'UserKnownHostsFile "{folder}/{name}.hosts"'


def _login(folder: Path, name: str, hop: Endpoint, default_agent: str) -> Iterator[str]:
    agent = hop.agent or ("" if hop.private_key else default_agent)
    yield f'IdentityAgent "{agent}"' if agent else "IdentityAgent none"
    if not hop.private_key:
        yield "IdentityFile none"
        return
    _write(folder / f"{name}.key", hop.private_key.strip() + "\n")
    yield f'IdentityFile "{folder}/{name}.key"'
    if not agent:
        yield "IdentitiesOnly yes"


def _write(path: Path, text: str) -> None:
    """Write a file that only this user may read, from its first byte on."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text)
