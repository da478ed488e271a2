"""The files under cloud-init/files and their paths on a node.

A node stores the files from user-data, and each bundle from a hand-over, in a separate folder below BUNDLES.
/usr/local/lib/trainyard is a link to the active folder. Programs are links into this folder, and units are copies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property

from yard.contract.checkout import ROOT

BUNDLES = "/var/lib/trainyard/bundles"
LIBRARY = "/usr/local/lib/trainyard"
MIRRORS = "mirrors.sh"
"""File for mirrors, as a path in a bundle. User-data contains it only if the stack file has mirrors."""
_FILES = ROOT / "cloud-init" / "files"
_PROGRAMS, _UNITS = "/usr/local/sbin", "/etc/systemd/system"
_FOLDERS = {f"{LIBRARY}/": "", f"{_PROGRAMS}/": "sbin/", f"{_UNITS}/": "units/"}
"""Maps a folder on a node to a folder in a bundle."""
_BIRTH = frozenset(
    {
        "bootstrap",
        "place",
        "stage.sh",
        "stages/10-base",
        "stages/15-archive",
        "stages/20-apt",
        "stages/30-driver",
        "sbin/trainyard-allow-format",
        "sbin/trainyard-receive",
        "sbin/trainyard-status",
        "units/trainyard-bootstrap.service",
    }
)
"""Files in user-data, as paths in a bundle: all files that a node needs until the hand-over arrives."""
_NEEDED_BY = re.compile(r"^# (?:fabrics|containers|drivers): (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *# (?!runs: |inputs: |fabrics: |containers: |drivers: |next to jobs: ).*\n", re.MULTILINE)
"""A line with a comment. Lines read by the bootstrap or by this package do not match."""


@dataclass(frozen=True)
class NodeFile:
    """A text file on a node, owned by root. The text is empty or ends with a newline."""

    path: str
    text: str
    executable: bool = False

    @cached_property
    def member(self) -> str:
        """Path in a bundle, for example "stages/10-base"."""
        for folder, within in _FOLDERS.items():
            if self.path.startswith(folder):
                return within + self.path.removeprefix(folder)
        raise ValueError(f"{self.path} is in none of {', '.join(_FOLDERS)}")

    @property
    def is_birth(self) -> bool:
        """Whether user-data contains the file."""
        return self.member in _BIRTH

    @property
    def stage(self) -> str | None:
        """Name of the stage, or None if the file is not a stage."""
        folder, _, name = self.member.rpartition("/")
        return name if folder == "stages" else None

    def is_needed(self, fabric: str, containers: str, driver: str = "none") -> bool:
        """Return whether a node with this fabric, container runtime and driver origin needs the file.

        Lines "# fabrics: NAME...", "# containers: NAME..." and "# drivers: NAME..." in the file restrict it to
        these nodes. A file without such lines is for all nodes.
        """
        named = [name for line in _NEEDED_BY.findall(self.text) for name in line.split()]
        return not named or not {fabric, containers, driver}.isdisjoint(named)


@cache
def shipped_files() -> tuple[NodeFile, ...]:
    """Return the files under cloud-init/files, sorted by path. Comments are removed from the text."""
    paths = sorted(path for path in _FILES.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return tuple(
        NodeFile(f"/{path.relative_to(_FILES)}", _COMMENT.sub("", path.read_text()), bool(path.stat().st_mode & 0o100))
        for path in paths
    )


@cache
def files_for(fabric: str, containers: str, driver: str = "none") -> tuple[NodeFile, ...]:
    """Return the shipped files that a node needs, sorted by path. For the parameters, see NodeFile.is_needed."""
    return tuple(file for file in shipped_files() if file.is_needed(fabric, containers, driver))


def changed_paths() -> list[str]:
    """Return the paths of shipped files on a node, except under /var/lib/trainyard and /etc/trainyard."""
    return [LIBRARY, *(file.path for file in shipped_files() if not file.path.startswith(f"{LIBRARY}/"))]
