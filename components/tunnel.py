"""The tunnel to the head while a deployment runs: opened, watched and ended with the Pulumi program (see relay.py)."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pulumi

from components.platforms.base import Tunnel

RELAY = Path(__file__).with_name("relay.py")
"""Run by its path with `python -I`: it needs nothing but the standard library."""

_LOOPBACK = "127.0.0.1"

_RELAYS: list[subprocess.Popen[str]] = []
"""Keeps their stdin open. It closes when this process ends, however it ends, and each relay then ends its tunnels."""


def connects() -> bool:
    """Return whether this run connects to machines: a preview does not, nor does a run against simulated clouds."""
    return not pulumi.runtime.is_dry_run() and os.environ.get("TRAINYARD_OFFLINE_COMMANDS") != "record"


def require(tunnel: Tunnel) -> None:
    """Raise pulumi.RunError, before any machine is made, if the tunnel could not be opened on this machine later."""
    if not connects():
        return
    program, port = tunnel.program, tunnel.port
    if shutil.which(program) is None:
        raise pulumi.RunError(
            f"`{program}` is not on PATH, and with access.via: bastion `pulumi up` reaches the head through a tunnel "
            f"that `{program}` opens. Fix: install it and log in, or set access.via: public"
        )
    with socket.socket() as probe:
        # As the relay does: a port that was in use a minute ago is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError as error:
            raise pulumi.RunError(
                f"port {port} of this machine is taken ({error.strerror}), and the tunnel to the head needs it. "
                f"Fix: end what listens there (`ss -ltnp sport = :{port}` shows it), or choose another {tunnel.option}"
            ) from error


def opened(command: pulumi.Output[Sequence[str]], port: pulumi.Input[int]) -> pulumi.Output[str]:
    """Return the address at which the head answers SSH on `port`, once `command` is known and the head has answered.

    Raises pulumi.RunError when the command fails for good, or no answer came within a quarter of an hour.
    """
    return pulumi.Output.all(command, port).apply(lambda found: _opened(found[0], found[1]))


async def _opened(command: Sequence[str], port: int) -> str:
    if connects():
        await _serve(command, port)
    return _LOOPBACK


async def _serve(command: Sequence[str], port: int) -> None:
    # A session of its own: Ctrl-C goes to the engine, which cancels what uses the tunnel before this process ends.
    relay = subprocess.Popen(
        [sys.executable, "-I", str(RELAY), "serve", str(port), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    _RELAYS.append(relay)
    assert relay.stdout  # noqa: S101  (PIPE above; tells the type checker)
    said = await _line(relay.stdout)
    if said == "ready":
        return
    reason = said.removeprefix("error ") or "the relay ended"
    raise pulumi.RunError(
        f"no tunnel to the head: {reason}. Fix: run the command named here by hand to see why, then `pulumi up` again; "
        "the machines stay"
    )


async def _line(stream: IO[str]) -> str:
    """Return the next line of a pipe. A thread that waits for it would keep the program from ending on its own."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(stream.fileno(), readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(stream.fileno())
    return stream.readline().strip()
