"""SSH connections to existing hosts: address, user, key, host key and jump host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pulumi
from pulumi_command import remote

from components.platforms.hosts.rules import PROXY
from components.platforms.hosts.spec import HostsSpec
from trainyard.errors import PlatformError

_DIAL_ATTEMPTS = 3
_DIAL_SECONDS = 15
"""The values are small because the hosts are already running. An unreachable host is reported within a minute."""


@dataclass(frozen=True)
class Route:
    """The SSH connection to a host. `proxy_jump` is the jump host in the format of SSH's ProxyJump option."""

    connection: remote.ConnectionArgs
    proxy: remote.ProxyConnectionArgs | None
    proxy_jump: str | None


def route(spec: HostsSpec, name: str) -> Route:
    """Return the SSH connection to a host. Raises PlatformError if its key file cannot be read."""
    host = spec.host(name)
    proxy, jump = _proxy(spec, name)
    connection = remote.ConnectionArgs(
        host=host.address,
        port=float(host.port),
        user=spec.user_of(host),
        private_key=_key(spec.key_of(host), name),
        host_key=host.host_key,
        proxy=proxy,
        dial_error_limit=_DIAL_ATTEMPTS,
        per_dial_timeout=_DIAL_SECONDS,
    )
    return Route(connection, proxy, jump)


def _proxy(spec: HostsSpec, name: str) -> tuple[remote.ProxyConnectionArgs | None, str | None]:
    host = spec.host(name)
    if host.proxy_jump is None:
        return None, None
    if host.proxy_jump in spec.addresses():
        other = spec.host(host.proxy_jump)
        user, address, port = spec.user_of(other), other.address, other.port
        key, host_key = spec.key_of(other), other.host_key
    else:
        found = PROXY.fullmatch(host.proxy_jump)
        if found is None:
            raise PlatformError(f"host {name}: proxy_jump is invalid. Fix: write user@address:port")
        user, address, port = found["user"] or spec.user_of(host), found["address"], int(found["port"] or 22)
        key, host_key = spec.key_of(host), host.proxy_host_key
    proxy = remote.ProxyConnectionArgs(
        host=address,
        port=float(port),
        user=user,
        private_key=_key(key, name),
        host_key=host_key,
        dial_error_limit=_DIAL_ATTEMPTS,
        per_dial_timeout=_DIAL_SECONDS,
    )
    return proxy, f"{user}@{address}:{port}"


def _key(file: str | None, name: str) -> pulumi.Output[str] | None:
    """Return the content of a key file as a Pulumi secret, or None to use the SSH agent.

    Raises PlatformError if the file cannot be read. In a preview, the content is empty instead.
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
