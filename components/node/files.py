"""The files under cloud-init/files and their paths on a node.

A node has a folder below BUNDLES for the files from user-data, and one for each bundle. LIBRARY is a link to the active
folder. Programs are symbolic links into that folder, and units are copies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property

from trainyard.checkout import ROOT

BUNDLES = "/var/lib/trainyard/bundles"
LIBRARY = "/usr/local/lib/trainyard"
MIRRORS = "mirrors.sh"
"""The script, inside a bundle, that configures mirrors. User-data contains the script only if mirrors are set."""
_FILES = ROOT / "cloud-init" / "files"
_PROGRAMS, _UNITS = "/usr/local/sbin", "/etc/systemd/system"
_FOLDERS = {f"{LIBRARY}/": "", f"{_PROGRAMS}/": "sbin/", f"{_UNITS}/": "units/"}
"""Mapping from folders on a node to folders in a bundle."""
_IN_USER_DATA = re.compile(r"^# user-data: yes$", re.MULTILINE)
"""Marks files that a node needs before the bundle arrives."""
_NEEDED_BY = re.compile(r"^# (?:fabrics|containers|drivers): (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"^ *# (?!runs: |inputs: |fabrics: |containers: |drivers: |next to jobs: ).*\n", re.MULTILINE)
"""Matches comment lines, except those that the bootstrap or this package reads."""


@dataclass(frozen=True)
class NodeFile:
    """A text file on a node that is owned by root. `text` ends with a newline."""

    path: str
    text: str
    executable: bool = False
    is_birth: bool = False
    """Whether user-data also contains the file."""

    @cached_property
    def member(self) -> str:
        """The path in a bundle, for example "stages/10-base"."""
        for folder, within in _FOLDERS.items():
            if self.path.startswith(folder):
                return within + self.path.removeprefix(folder)
        raise ValueError(f"{self.path} is not in {', '.join(_FOLDERS)}")

    @property
    def stage(self) -> str | None:
        """The stage's name, or None if the file is not a stage."""
        folder, _, name = self.member.rpartition("/")
        return name if folder == "stages" else None

    def is_needed(self, fabric: str, containers: str, driver: str = "none") -> bool:
        """Return whether a node with this fabric, container runtime and driver (`HostPlan.driver`) needs the file.

        All nodes need a file that has no line "# fabrics: NAME...", "# containers: NAME..." or "# drivers: NAME...".
        """
        named = [name for line in _NEEDED_BY.findall(self.text) for name in line.split()]
        return not named or not {fabric, containers, driver}.isdisjoint(named)


@cache
def shipped_files() -> tuple[NodeFile, ...]:
    """Return the files under cloud-init/files without their comments, sorted by path."""
    paths = sorted(path for path in _FILES.rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    return tuple(
        NodeFile(
            path=f"/{path.relative_to(_FILES)}",
            text=_COMMENT.sub("", text),
            executable=bool(path.stat().st_mode & 0o100),
            is_birth=bool(_IN_USER_DATA.search(text)),
        )
        for path, text in ((path, path.read_text()) for path in paths)
    )


@cache
def files_for(fabric: str, containers: str, driver: str = "none") -> tuple[NodeFile, ...]:
    """Return the shipped files that a node with these properties needs (NodeFile.is_needed), sorted by path."""
    return tuple(file for file in shipped_files() if file.is_needed(fabric, containers, driver))


def changed_paths() -> list[str]:
    """Return the paths on a node that contain shipped files, except under /var/lib/trainyard and /etc/trainyard."""
    return [LIBRARY, *(file.path for file in shipped_files() if not file.path.startswith(f"{LIBRARY}/"))]
