"""SSH connections to existing hosts: address, user, key, host key and jump host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulumi
from pulumi_command import remote

from components.platforms.hosts.rules import PROXY
from components.platforms.hosts.spec import HostsSpec
from trainyard.errors import PlatformError

# The limits are small because the hosts are already running. An unreachable host is reported within a minute.
_LIMITS = {"dial_error_limit": 3, "per_dial_timeout": 15}


@dataclass(frozen=True)
class Route:
    """The SSH connection to a host. `proxy_jump` is the jump host in the format of SSH's ProxyJump option."""

    connection: remote.ConnectionArgs
    proxy: remote.ProxyConnectionArgs | None
    proxy_jump: str | None


def route(spec: HostsSpec, name: str) -> Route:
    """Return the SSH connection to a host. Raises PlatformError if its key file cannot be read."""
    host = spec.host(name)
    key = _key(spec.key_of(host), name)
    login = _login(spec.user_of(host), host.address, host.port, host.host_key)
    if host.proxy_jump is None:
        return Route(remote.ConnectionArgs(**login, private_key=key), None, None)
    if host.proxy_jump in spec.addresses():
        other = spec.host(host.proxy_jump)
        user, address, port, host_key = spec.user_of(other), other.address, other.port, other.host_key
        proxy_key = _key(spec.key_of(other), name)
    else:
        found = PROXY.fullmatch(host.proxy_jump)
        if found is None:
            raise PlatformError(f"host {name}: proxy_jump is invalid. Fix: write user@address:port")
        user, address, port = found["user"] or spec.user_of(host), found["address"], int(found["port"] or 22)
        host_key, proxy_key = host.proxy_host_key, key
    proxy = remote.ProxyConnectionArgs(**_login(user, address, port, host_key), private_key=proxy_key)
    connection = remote.ConnectionArgs(**login, private_key=key, proxy=proxy)
    return Route(connection, proxy, f"{user}@{address}:{port}")


def _login(user: str, address: str, port: int, host_key: str | None) -> dict[str, Any]:
    return {"host": address, "port": float(port), "user": user, "host_key": host_key, **_LIMITS}


def _key(file: str | None, name: str) -> pulumi.Output[str] | None:
    """Return a key file's content as a Pulumi secret, or None to use the SSH agent.

    Raises PlatformError if the file cannot be read, except in a preview, which uses an empty key.
    """
    if file is None:
        return None
    path = Path(file).expanduser()
    try:
        return pulumi.Output.secret(path.read_text())
    except OSError as error:
        if pulumi.runtime.is_dry_run():
            return pulumi.Output.secret("")
        fix = "correct cluster.platform.key, or load the key into the SSH agent and remove the field"
        raise PlatformError(f"host {name}: cannot read the key {path} ({error.strerror}). Fix: {fix}") from error
