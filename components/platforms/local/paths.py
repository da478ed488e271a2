"""Where things lie: images in the cache, machines in the checkout, sockets where paths are short."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from components.errors import PlatformError

STATE_FOLDER = ".trainyard"
"""The checkout's ignored folder."""
PIDFILE = "qemu.pid"
"""Name of a machine's pidfile in its folder."""


def cache_folder() -> Path:
    """Return the cache that outlives a checkout."""
    own = os.environ.get("TRAINYARD_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(own) if own else Path(base) / "trainyard"


def runs_folder() -> Path:
    """Return the folder that holds one run folder per stack."""
    return Path(__file__).resolve().parents[3] / STATE_FOLDER / "run"


def socket_folder(run: Path) -> Path:
    """Return the folder for a run's sockets: always the same for the same run folder, whatever the environment.

    A socket path may have 107 bytes and a checkout may lie anywhere, so it is named by a hash under a short base.
    """
    digest = hashlib.sha256(str(run).encode()).hexdigest()[:12]
    return Path("/tmp") / f"trainyard-{os.getuid()}-{digest}"  # noqa: S108  (owner-only, and make_private checks it)


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter. Raises PlatformError when somebody else has put one there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid():
        raise PlatformError(f"{folder}: belongs to another user. Fix: remove it")
    folder.chmod(0o700)
