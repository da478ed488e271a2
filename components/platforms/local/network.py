"""The private network of a stack: a vde_switch that uses Unix sockets only."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.platforms.local.paths import make_private, socket_folder, switch_socket
from components.platforms.local.process import find, run_program
from trainyard.errors import PlatformError

_PIDFILE = "switch.pid"
_LOCK = "switch.lock"
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


@contextmanager
def connecting(run: Path) -> Iterator[None]:
    """Wait until no other machine connects to the switch, and prevent others from connecting during the context.

    If two machines connect at the same time, vde_switch can assign the frames of one machine to the port of the other
    machine. The first machine then receives only broadcasts. Three clients that connected within 50 ms had this fault
    in 6 of 773 runs (version 2.3.2+r586, 2026-11-23). Cause: add_fd does not update the position of the descriptor that
    it moves, and mainloop_set_private_data uses this position (virtualsquare/vde-2 at 6ad51c2,
    src/vde_switch/vde_switch.c, read 2026-11-23).
    """
    with (run / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
