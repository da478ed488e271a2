"""Privileges for the build: root, sudo or a user namespace."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from trainyard.errors import PlatformError


@dataclass(frozen=True, kw_only=True)
class Privilege:
    """`mode` is mmdebstrap's --mode, and `prefix` begins all other commands that need privileges."""

    mode: str
    prefix: tuple[str, ...]
    why: str

    @property
    def installer(self) -> tuple[str, ...]:
        """Prefix for mmdebstrap. It is empty in unshare mode, because mmdebstrap then creates the namespace itself."""
        return () if self.mode == "unshare" else self.prefix


def privilege() -> Privilege:
    """Return the first available privileges, in the order root, sudo, user namespace. Raises PlatformError."""
    if os.geteuid() == 0:
        return Privilege(mode="root", prefix=(), why="root")
    if _works("sudo", "-n", "true"):
        return Privilege(mode="root", prefix=("sudo", "-n"), why="sudo")
    if _works("mmdebstrap", "--unshare-helper", "true"):
        return Privilege(mode="unshare", prefix=("mmdebstrap", "--unshare-helper"), why="user namespace")
    raise PlatformError(
        "golden image: the build needs root, passwordless sudo, or user namespaces for this user. "
        "Fix: run `sudo -v` first, or install the uidmap package and give this user a range in /etc/subuid and "
        "/etc/subgid"
    )


def _works(*command: str) -> bool:
    if shutil.which(command[0]) is None:
        return False
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
