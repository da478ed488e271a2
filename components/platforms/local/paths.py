"""Folders that the local platform uses: images in the cache, machines in the checkout, sockets in /tmp."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from trainyard.checkout import ROOT
from trainyard.errors import PlatformError

STATE_FOLDER = ".trainyard"
"""Folder in the checkout that git ignores."""
PIDFILE = "qemu.pid"


def cache_folder() -> Path:
    """Return the cache folder, which all of a user's checkouts share."""
    own = os.environ.get("TRAINYARD_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "trainyard"


def runs_folder() -> Path:
    """Return the folder that contains the run folder of each stack."""
    return ROOT / STATE_FOLDER / "run"


def socket_folder(run: Path) -> Path:
    """Return the folder for the sockets of a run. The path depends only on the run folder and the user.

    A socket path can have at most 107 bytes, which a path in the checkout could exceed. The folder is therefore in
    /tmp, and its name contains a hash.
    """
    digest = hashlib.sha256(str(run).encode()).hexdigest()[:12]
    return Path("/tmp") / f"trainyard-{os.getuid()}-{digest}"  # noqa: S108  (make_private checks the owner)


def switch_socket(run: Path) -> Path:
    """Return the folder with the switch's sockets, to which machines connect."""
    return socket_folder(run) / "switch"


def make_private(folder: Path) -> None:
    """Create a folder that only this user can access. Raises PlatformError if it belongs to another user."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid():
        raise PlatformError(f"{folder}: belongs to another user. Fix: remove it")
    folder.chmod(0o700)


@dataclass(frozen=True, kw_only=True)
class MachineFiles:
    """The files of a machine, which is identified by the run folder and the machine's name. The machine may not
    exist."""

    run: Path
    name: str

    @property
    def folder(self) -> Path:
        """Folder with all files except the monitor socket."""
        return self.run / self.name

    @property
    def disk(self) -> Path:
        """Root disk, an overlay of the golden image."""
        return self.folder / "disk.qcow2"

    @property
    def seed(self) -> Path:
        """Seed disk with the user-data."""
        return self.folder / "seed.img"

    @property
    def console(self) -> Path:
        """Log of the serial console. Each start appends to the log."""
        return self.folder / "console.log"

    @property
    def pidfile(self) -> Path:
        """Pidfile of the QEMU process."""
        return self.folder / PIDFILE

    @property
    def monitor(self) -> Path:
        """Socket for QEMU's monitor."""
        return socket_folder(self.run) / f"{self.name}.qmp"
