"""The tunnel to the head during `pulumi up`. A relay (relay.py) keeps it open until the Pulumi program exits."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import pulumi

from components.platforms.registry import Tunnel
from trainyard import relay

RELAY = Path(relay.__file__)
_LOOPBACK = "127.0.0.1"
_RELAYS: list[subprocess.Popen[str]] = []
"""Keeps the relays' standard inputs open until this process ends. The relays then close their tunnels."""


def require_tunnel(tunnel: Tunnel) -> None:
    """Raise pulumi.RunError if the tunnel's program is missing or its port is in use, unless this is a preview."""
    if pulumi.runtime.is_dry_run():
        return
    program, port = tunnel.program, tunnel.port
    if shutil.which(program) is None:
        raise pulumi.RunError(
            f"`{program}` is not on PATH. With access.via: bastion, `pulumi up` reaches the head through a tunnel "
            f"opened by `{program}`. Fix: install it and log in, or set access.via: public"
        )
    with socket.socket() as probe:
        # The relay also sets SO_REUSEADDR, so it can use a port whose last connection has only just closed.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            raise pulumi.RunError(
                f"port {port} on this machine is in use ({error.strerror}), and the tunnel to the head needs it. "
                f"Fix: stop the program that uses it (`ss -ltnp sport = :{port}` lists it), or set a different "
                f"{tunnel.option}"
            ) from error


def open_tunnel(command: pulumi.Output[Sequence[str]], port: pulumi.Input[int]) -> pulumi.Output[str]:
    """Start the relay, and return its address once the head's sshd has answered. Raises pulumi.RunError."""

    async def opened(values: Sequence[Any]) -> str:
        if not pulumi.runtime.is_dry_run():
            await _serve(values[0], values[1])
        return _LOOPBACK

    return pulumi.Output.all(command, port).apply(opened)


async def _serve(command: Sequence[str], port: int) -> None:
    # In a new session, Ctrl-C does not reach the relay, so the engine can first cancel operations that use the tunnel.
    relay = subprocess.Popen(
        [sys.executable, "-I", str(RELAY), "serve", str(port), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _RELAYS.append(relay)
    assert relay.stdout  # noqa: S101  (PIPE above; for the type checker)
    status = await _line(relay.stdout)
    if status == "ready":
        return
    reason = status.removeprefix("error ") or "the relay ended"
    raise pulumi.RunError(
        f"no tunnel to the head: {reason}. Fix: run that command by hand, correct its error, then run `pulumi up` "
        "again. The existing machines are kept"
    )


async def _line(stream: IO[str]) -> str:
    """Return the next line from a pipe. No thread is used, because a waiting thread would keep the program running."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(stream.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(stream.fileno())
    return stream.readline().strip()
