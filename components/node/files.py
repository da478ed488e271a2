"""The files under cloud-init/files, their paths on a node, and the script that installs the files from user-data.

The files are not in `write_files`, because cloud-init would parse them a dozen times. The script is plain text, so that
operators can read user-data and compare versions.

A node has a folder below BUNDLES for the files from user-data, and one for each bundle. LIBRARY is a link to the active
folder. Programs are symbolic links into that folder, and units are copies.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import PurePosixPath

from components.catalog import DriverLock, archives, driver_locks
from components.plan.plan import ClusterPlan, HostPlan
from trainyard.errors import CatalogError
from trainyard.project import installed

BUNDLES = "/var/lib/trainyard/bundles"
LIBRARY = "/usr/local/lib/trainyard"
MIRRORS = "mirrors.sh"
"""The script, inside a bundle, that configures mirrors. User-data contains the script only if mirrors are set."""
_FILES = installed("cloud-init/files")
_PROGRAMS, _UNITS = "/usr/local/sbin", "/etc/systemd/system"
_FOLDERS = {f"{LIBRARY}/": "", f"{_PROGRAMS}/": "sbin/", f"{_UNITS}/": "units/"}
"""Mapping from folders on a node to folders in a bundle."""
_IN_USER_DATA = re.compile(r"^# user-data: yes$", re.MULTILINE)
"""Marks files that a node needs before the bundle arrives."""
_NEEDED_BY = re.compile(r"^# (?:fabrics|containers|drivers): (.+)$", re.MULTILINE)
_COMMENT = re.compile(
    r"^ *# (?!runs: |inputs: |fabrics: |containers: |drivers: |next to jobs: |later stages: ).*\n", re.MULTILINE
)
"""Matches comment lines, except those that the bootstrap or this package reads."""
BIRTH = f"{BUNDLES}/birth"
"""The folder with the files from user-data."""
_BOOTSTRAP = "trainyard-bootstrap.service"
START = f"sync -f {_UNITS}\nsystemctl start --no-block {_BOOTSTRAP}"
"""Commands that start a node's bring-up.

After a crash, cloud-init does not run the script again, because it marks the scripts-user module as done before it runs
the scripts (canonical/cloud-init 25.1.4, cloudinit/helpers.py, FileSemaphores.lock; read 2026-11-22). Therefore, `sync`
first flushes the script's files to the disk, including the link that starts the service at the next boot.
"""
_FILE_PREFIX = "=== /"
"""Prefix of the line that contains a file's path. The file's text follows this line."""
_END_LINE = "END-OF-FILES"


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
            executable=text.startswith("#!"),
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


def mime_message(cloud_config: str, name: str, script: str) -> str:
    """Return user-data with a #cloud-config and a script. In a MIME message, the script needs no indentation."""
    return f"""Content-Type: multipart/mixed; boundary="TRAINYARD"
MIME-Version: 1.0

--TRAINYARD
Content-Type: text/cloud-config

{cloud_config}
--TRAINYARD
Content-Type: text/x-shellscript
Content-Disposition: attachment; filename="{name}"

{script}
--TRAINYARD--
"""


def render_install(files: Iterable[NodeFile], begin: str = START) -> str:
    """Return the install script, whose last command is `begin`. The script does not replace an active bundle.

    One awk process writes all files, because processes start slowly on emulated machines. Raises CatalogError if the
    script cannot contain a file.
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
awk '/^=== \\// {{ if (file) close(file); file = $2; printf "" > file; next }} {{ print > file }}' <<'{_END_LINE}'
{body}{_END_LINE}
chmod 0755 {" ".join(programs)}
[[ -L {LIBRARY} ]] || {{ rm -rf {LIBRARY}; ln -s {BIRTH} {LIBRARY}; }}
{LIBRARY}/place
ln -sf {_UNITS}/{_BOOTSTRAP} {_UNITS}/multi-user.target.wants/
{begin}
"""


@lru_cache(maxsize=256)  # the shipped files are the same for all hosts
def _check(file: NodeFile) -> None:
    lines = file.text.splitlines()
    breaks_script = (
        _END_LINE in lines
        or any(line.startswith(_FILE_PREFIX) for line in lines)
        or (lines and not file.text.endswith("\n"))
    )
    if breaks_script or not PurePosixPath(file.path).is_absolute() or any(mark in file.path for mark in " '\"$*?\n"):
        raise CatalogError(
            f"the install script cannot contain {file.path}: the path must be absolute without spaces, quotes and "
            f"wildcards, and the text must end with a newline and have no line that is {_END_LINE} or begins with "
            f"'{_FILE_PREFIX}'"
        )


def driver_version(plan: ClusterPlan, host: HostPlan) -> str:
    """Return the expected version of the host's driver, or "" if it is unknown."""
    lock = _lock(plan, host)
    return plan.image.versions.get("driver", "") if lock is None else lock.driver


def driver_lock(plan: ClusterPlan, host: HostPlan) -> str | None:
    """Return the text of driver.lock for a host with `driver: install`, or None for other hosts."""
    lock = _lock(plan, host)
    return None if lock is None else "".join(_lock_lines(lock))


def mirror_program(mirrors: Mapping[str, str], *, distribution: bool = False) -> str:
    """Return a `sed -E` program that replaces archives with mirrors: either the distribution's or all others."""
    substitutions = []
    for name, archive in archives().items():
        if archive.distribution == distribution and name in mirrors:
            end = re.compile(archive.url).groups + 1
            substitutions.append(rf"s%{archive.url}([/[:space:]]|$)%{mirrors[name]}\{end}%g")
    return ";".join(substitutions)


def _lock(plan: ClusterPlan, host: HostPlan) -> DriverLock | None:
    return driver_locks().get(plan.image.os) if host.driver == "install" else None


def _lock_lines(lock: DriverLock) -> Iterator[str]:
    """Yield the lines of driver.lock, which cloud-init/files/usr/local/lib/trainyard/driver.sh reads."""
    yield f"driver {lock.driver}\nmodule {lock.module}\n"
    for archive in lock.archives:
        yield f"archive {archive.name} {archive.key} {archive.fingerprint} {archive.url or '-'} {archive.suite}\n"
    for kind, packages in (("package", lock.packages), ("nvswitch", lock.nvswitch), ("optional", lock.optional)):
        for name, package in packages.items():
            yield f"{kind} {name} {package.version} {package.sha256 or '-'}\n"
    for path, text in lock.files.items():
        yield f"file {path}\n"
        yield from (f"| {line}\n" for line in text.splitlines())
