"""The install script: every file of a node in one shell script, the same wherever it runs. Pure.

A script, since cloud-init would parse the same text a dozen times as `write_files`; plain text, since a person reads
user-data and the difference between two of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath

from components.errors import CatalogError

_FILES = Path(__file__).parent.parent / "cloud-init" / "files"
START = "systemctl start --no-block trainyard-bootstrap.service"
"""Begins the bring-up of a node that has just booted."""

_MARK = "=== /"
"""Begins the line before each file's content; the rest of the line is its path."""
_END = "END-OF-FILES"
_NEEDED_BY = re.compile(r"^# (?:fabrics|containers): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class NodeFile:
    """A text file of a node; its owner is root. The path is absolute, the text empty or ended by a newline."""

    path: str
    text: str
    executable: bool = False

    def suits(self, fabric: str, containers: str) -> bool:
        """Return whether a node needs it: one of its fabric or of its stack's `containers` is named in the file.

        The lines are "# fabrics: NAME..." and "# containers: NAME...". A file without any is for every node.
        """
        named = [name for line in _NEEDED_BY.findall(self.text) for name in line.split()]
        return not named or fabric in named or containers in named


@cache
def shipped_files() -> tuple[NodeFile, ...]:
    """Return the static files of the bundle, by path."""
    paths = sorted(path for path in _FILES.rglob("*") if path.is_file())
    return tuple(
        NodeFile(f"/{path.relative_to(_FILES)}", path.read_text(), bool(path.stat().st_mode & 0o100)) for path in paths
    )


@cache
def files_for(fabric: str, containers: str) -> tuple[NodeFile, ...]:
    """Return the static files that a node of that fabric and that stack's `containers` needs, by path."""
    return tuple(file for file in shipped_files() if file.suits(fabric, containers))


def render_install(files: Iterable[NodeFile], begin: str = START) -> str:
    """Return the script; `begin` is its last command.

    Few processes and one pass, since an emulated machine feels every process it starts.

    Raises CatalogError for a file that the script's own marks would tear.
    """
    files = list(files)
    for file in files:
        _check(file)
    folders = sorted({str(PurePosixPath(file.path).parent) for file in files})
    programs = sorted(file.path for file in files if file.executable)
    body = "".join(f"=== {file.path}\n{file.text}" for file in files)
    return f"""#!/usr/bin/env bash
# Writes this node's files and starts its bring-up. Each file's text follows a line with its path.
set -euo pipefail
umask 022
mkdir -p {" ".join(folders)}
awk '/^=== \\// {{ if (file) close(file); file = $2; printf "" > file; next }} {{ print > file }}' <<'{_END}'
{body}{_END}
chmod 0755 {" ".join(programs)}
{begin}
"""


@lru_cache(maxsize=256)  # the shipped ones are the same in the script of every host
def _check(file: NodeFile) -> None:
    lines = file.text.splitlines()
    torn = _END in lines or any(line.startswith(_MARK) for line in lines) or (lines and not file.text.endswith("\n"))
    if torn or not PurePosixPath(file.path).is_absolute() or any(mark in file.path for mark in " '\"$*?\n"):
        raise CatalogError(
            f"the install script cannot carry {file.path}: its path must be absolute and plain, its text must end with "
            f"a newline and have no line that is {_END} or begins with '{_MARK}'"
        )
