"""The private network: one vde_switch per stack, unix sockets only."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from components.errors import PlatformError
from components.platforms.local.paths import make_private, socket_folder
from components.platforms.local.process import find

_PIDFILE = "switch.pid"
_START_SECONDS = 5.0


def switch_socket(run: Path) -> Path:
    """Return the folder of sockets that machines plug into."""
    return socket_folder(run) / "switch"


def switch_pid(run: Path) -> int | None:
    """Return the process of the run's switch, None when it is not running."""
    return find(run / _PIDFILE)


def start_switch(run: Path) -> int:
    """Start the switch of a run folder and return its process. Raises PlatformError when it does not come up."""
    # Disks and seeds in it contain host keys, which other users of this computer must not read.
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    run.chmod(0o700)
    make_private(socket_folder(run))
    pidfile = run / _PIDFILE
    pidfile.unlink(missing_ok=True)
    command = ["vde_switch", "-daemon", "-p", str(pidfile), "-s", str(switch_socket(run)), "-m", "600"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PlatformError("switch: vde_switch is missing. Fix: install the vde2 package") from error
    deadline = time.monotonic() + _START_SECONDS
    while done.returncode == 0 and time.monotonic() < deadline:
        pid = switch_pid(run)
        if pid is not None and switch_socket(run).is_dir():
            return pid
        time.sleep(0.05)
    raise PlatformError(f"switch: vde_switch did not start in {run}: {done.stderr.strip() or 'it said nothing'}")
