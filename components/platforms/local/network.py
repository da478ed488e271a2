"""The private network of a stack: a vde_switch that uses Unix sockets only."""

from __future__ import annotations

import time
from pathlib import Path

from components.platforms.local.paths import make_private, socket_folder, switch_socket
from components.platforms.local.process import find, run_program
from yard.contract.errors import PlatformError

_PIDFILE = "switch.pid"
_START_SECONDS = 5.0


def switch_pid(run: Path) -> int | None:
    """Return the process id of the switch, or None if it is not running."""
    return find(run / _PIDFILE)


def start_switch(run: Path) -> int:
    """Start the switch for a run folder and return its process id. Raises PlatformError if it does not start."""
    # Other users on this computer must not read the host keys in disks and seeds.
    make_private(run)
    make_private(socket_folder(run))
    pidfile, socket = run / _PIDFILE, switch_socket(run)
    pidfile.unlink(missing_ok=True)
    command = ["vde_switch", "-daemon", "-p", str(pidfile), "-s", str(socket), "-m", "600"]
    run_program("switch", "install the vde2 package", *command)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        pid = switch_pid(run)
        if pid is not None and socket.is_dir():
            return pid
        time.sleep(0.05)
    raise PlatformError(f"switch: vde_switch did not start in {run}")
