"""Folders that the local platform uses: images in the cache, machines in the project, sockets in /tmp."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trainyard.errors import PlatformError
from trainyard.project import ROOT

STATE_FOLDER = ".trainyard"
"""Folder in the project that git ignores."""
PIDFILE = "qemu.pid"


def cache_folder() -> Path:
    """Return the cache folder that all of a user's checkouts share."""
    own = os.environ.get("TRAINYARD_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "trainyard"


def runs_folder() -> Path:
    """Return the folder that contains the stacks' run folders."""
    return ROOT / STATE_FOLDER / "run"


def socket_folder(run: Path) -> Path:
    """Return the folder for a run's sockets. The folder's path depends only on the run folder and the user.

    A socket's path can have at most 107 bytes, but a path in the project could be longer. Therefore the folder is in
    /tmp, and its name contains a hash.
    """
    digest = hashlib.sha256(str(run).encode()).hexdigest()[:12]
    return Path("/tmp") / f"trainyard-{os.getuid()}-{digest}"  # noqa: S108  (make_private checks the owner)


def switch_socket(run: Path) -> Path:
    """Return the folder with the switch's sockets, to which machines connect."""
    return socket_folder(run) / "switch"


def make_private(folder: Path) -> None:
    """Create a folder that only this user can access. Raises PlatformError if the folder is another user's."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid():
        raise PlatformError(f"{folder}: belongs to another user. Fix: remove it")
    folder.chmod(0o700)


class MachineFiles:
    """The files of the machine `name` in the run folder `run`. The machine does not have to exist."""

    def __init__(self, *, run: Path, name: str) -> None:
        self.run, self.name = run, name
        self.folder = run / name
        """Folder with all files except the monitor socket."""
        self.disk = self.folder / "disk.qcow2"
        """Root disk, which is an overlay of the machine's image."""
        self.seed = self.folder / "seed.img"
        """Seed disk with the user-data."""
        self.console = self.folder / "console.log"
        """Log of the serial console. Each start of the machine appends to the log."""
        self.pidfile = self.folder / PIDFILE
        self.start_file = self.folder / "start.json"
        """The command that starts the machine, for power.py."""
        self.stop_file = self.folder / "stopping"
        """The id of the process that power.py has asked to stop."""
        self.monitor = socket_folder(run) / f"{name}.qmp"
        """Socket for QEMU's monitor."""
