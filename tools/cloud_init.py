"""Download the guests' version of cloud-init, because the checks use its `schema` command.

The package is not installed, because its services would reconfigure this computer at the next boot.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from components.platforms.local.image_build import GOLDEN, Archive, machine_archive
from trainyard.errors import ClusterError

_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def fetch(target: Path, archive: Archive) -> None:
    """Unpack the `cloudinit` Python package into a folder. Raises CalledProcessError if apt fails."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        options = _apt_options(work, archive)
        subprocess.run(["apt-get", *options, "-q", "update"], check=True)
        subprocess.run(["apt-get", *options, "-q", "download", "cloud-init"], check=True, cwd=work)
        package = next(work.glob("cloud-init_*.deb"))
        subprocess.run(["dpkg-deb", "-x", package, work / "root"], check=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(work / "root/usr/lib/python3/dist-packages", target)


def _apt_options(work: Path, archive: Archive) -> list[str]:
    """Return options that make apt keep its state in `work`, and use only the guests' release as a source."""
    line = archive.sources(GOLDEN.suite)[0]
    if _KEYRING.exists():
        line = line.replace("deb ", f"deb [signed-by={_KEYRING}] ", 1)
    (work / "sources.list").write_text(f"{line}\n")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (work / folder).mkdir(parents=True)
    own = (
        f"Dir::State={work}/state",
        "Dir::State::status=/dev/null",
        f"Dir::Cache={work}/cache",
        f"Dir::Etc::SourceList={work}/sources.list",
        "Dir::Etc::SourceParts=/dev/null",
        "Acquire::Languages=none",
        "APT::Sandbox::User=root",
    )
    return [argument for option in own for argument in ("-o", option)]


def main() -> int:
    try:
        fetch(Path(sys.argv[1]), machine_archive())
    except (ClusterError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"cloud-init's schema checker: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
