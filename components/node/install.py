"""Renders the install script: one shell script that contains the files in user-data.

The files are not in `write_files`, because cloud-init would parse them a dozen times. The script is plain text, so that
operators can read user-data and compare versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import PurePosixPath

from components.catalog import DriverLock, archives, driver_locks
from components.node.files import BUNDLES, LIBRARY, NodeFile
from components.plan.plan import ClusterPlan, HostPlan
from trainyard.errors import CatalogError

BIRTH = f"{BUNDLES}/birth"
"""The folder with the files from user-data."""
_UNITS, _BOOTSTRAP = "/etc/systemd/system", "trainyard-bootstrap.service"
START = f"sync -f {_UNITS}\nsystemctl start --no-block {_BOOTSTRAP}"
"""Commands that start a node's bring-up.

After a crash, cloud-init does not run the script again, because it marks the scripts-user module as done before it runs
the scripts (canonical/cloud-init 25.1.4, cloudinit/helpers.py, FileSemaphores.lock; read 2026-11-22). Therefore, `sync`
first flushes the script's files to the disk, including the link that starts the service at the next boot.
"""

_FILE_PREFIX = "=== /"
"""Prefix of the line that contains a file's path. The file's text follows this line."""
_END_LINE = "END-OF-FILES"


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
