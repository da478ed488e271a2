"""The files under cloud-init/files and their paths on a node.

A node stores the files from user-data, and each bundle from a hand-over, in a separate folder below BUNDLES.
/usr/local/lib/trainyard is a link to the active folder. Programs are symbolic links to files in this folder, and
units are copies of its files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from trainyard.checkout import ROOT

BUNDLES = "/var/lib/trainyard/bundles"
LIBRARY = "/usr/local/lib/trainyard"
MIRRORS = "mirrors.sh"
"""File for mirrors, as a path in a bundle. User-data contains it only if the stack file has mirrors."""
_FILES = ROOT / "cloud-init" / "files"
_PROGRAMS, _UNITS = "/usr/local/sbin", "/etc/systemd/system"
_FOLDERS = {f"{LIBRARY}/": "", f"{_PROGRAMS}/": "sbin/", f"{_UNITS}/": "units/"}
"""Maps a folder on a node to a folder in a bundle."""
_IN_USER_DATA = re.compile(r"^# user-data: yes$", re.MULTILINE)
"""Marks the files that a node needs before the hand-over arrives."""
_NEEDED_BY = re.compile(r"^# (?:fabrics|containers|drivers): (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *# (?!runs: |inputs: |fabrics: |containers: |drivers: |next to jobs: ).*\n", re.MULTILINE)
"""Matches a comment line, unless the bootstrap or this package reads the line."""


@dataclass(frozen=True)
class NodeFile:
    """A text file on a node, owned by root. The text is empty or ends with a newline."""

    path: str
    text: str
    executable: bool = False
    is_birth: bool = False
    """Whether user-data contains the file."""

    @cached_property
    def member(self) -> str:
        """Path in a bundle, for example "stages/10-base"."""
        for folder, within in _FOLDERS.items():
            if self.path.startswith(folder):
                return within + self.path.removeprefix(folder)
        raise ValueError(f"{self.path} is not in {', '.join(_FOLDERS)}")

    @property
    def stage(self) -> str | None:
        """Name of the stage, or None if the file is not a stage."""
        folder, _, name = self.member.rpartition("/")
        return name if folder == "stages" else None

    def is_needed(self, fabric: str, containers: str, driver: str = "none") -> bool:
        """Return whether a node with this fabric, container runtime and driver origin needs the file.

        Lines "# fabrics: NAME...", "# containers: NAME..." and "# drivers: NAME..." in the file restrict the file to
        these nodes. A file without such lines is for all nodes.
        """
        named = [name for line in _NEEDED_BY.findall(self.text) for name in line.split()]
        return not named or not {fabric, containers, driver}.isdisjoint(named)


@cache
def shipped_files() -> tuple[NodeFile, ...]:
    """Return the files under cloud-init/files, sorted by path. Comments are removed from the text."""
    paths = sorted(path for path in _FILES.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return tuple(map(_shipped_file, paths))


def _shipped_file(path: Path) -> NodeFile:
    text = path.read_text()
    return NodeFile(
        path=f"/{path.relative_to(_FILES)}",
        text=_COMMENT.sub("", text),
        executable=bool(path.stat().st_mode & 0o100),
        is_birth=bool(_IN_USER_DATA.search(text)),
    )


@cache
def files_for(fabric: str, containers: str, driver: str = "none") -> tuple[NodeFile, ...]:
    """Return the shipped files that a node needs, sorted by path. For the parameters, see NodeFile.is_needed."""
    return tuple(file for file in shipped_files() if file.is_needed(fabric, containers, driver))


def changed_paths() -> list[str]:
    """Return the paths of shipped files on a node, except under /var/lib/trainyard and /etc/trainyard."""
    return [LIBRARY, *(file.path for file in shipped_files() if not file.path.startswith(f"{LIBRARY}/"))]
