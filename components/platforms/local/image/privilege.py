"""How the build gets the rights it needs: as root, through sudo, or in a user namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from components.errors import PlatformError


@dataclass(frozen=True, kw_only=True)
class Privilege:
    """`mode` is mmdebstrap's --mode; `prefix` runs any other command with the same rights over the tree."""

    mode: str
    prefix: tuple[str, ...]
    why: str

    @property
    def installer(self) -> tuple[str, ...]:
        """What mmdebstrap itself must be run with: unshare mode enters its namespace on its own."""
        return () if self.mode == "unshare" else self.prefix


def privilege() -> Privilege:
    """Choose the first way that works. Raises PlatformError naming what would."""
    if os.geteuid() == 0:
        return Privilege(mode="root", prefix=(), why="root")
    if _works("sudo", "-n", "true"):
        return Privilege(mode="root", prefix=("sudo", "-n"), why="sudo")
    if _works("mmdebstrap", "--unshare-helper", "true"):
        return Privilege(mode="unshare", prefix=("mmdebstrap", "--unshare-helper"), why="user namespace")
    raise PlatformError(
        "golden image: building it needs root, sudo without a password, or user namespaces for this user. "
        "Fix: run `sudo -v` first, or install the uidmap package and give this user a range in /etc/subuid and "
        "/etc/subgid"
    )


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
