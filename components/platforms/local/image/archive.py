"""Where Debian packages come from: the archive that this machine's own apt already uses. No host name is ours."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from components.errors import PlatformError

_TARGET_FORMAT = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)\t$(ORIGIN)"
_FORWARDED = ("Acquire::Check-", "Acquire::Retries", "Acquire::http::", "Acquire::https::")
"""apt settings that reaching this machine's archive may need: dates of a frozen mirror, proxies, certificates."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """URIs of the Debian archive and of its security archive, and the apt settings to reach them with."""

    main: str
    security: str
    options: tuple[str, ...] = ()

    def sources(self, suite: str) -> tuple[str, ...]:
        """Return the apt sources of a Debian release, its updates and its security updates."""
        return (
            f"deb {self.main} {suite} main",
            f"deb {self.main} {suite}-updates main",
            f"deb {self.security} {suite}-security main",
        )


def parse_targets(lines: Iterable[str], own_distribution: str) -> tuple[str, str] | None:
    """Find (main, security) among `apt-get indextargets` lines of _TARGET_FORMAT; None without a Debian archive.

    A source that was never updated has no origin yet; it counts as of the machine's own distribution (os-release ID).
    """
    main: str | None = None
    security: str | None = None
    for line in lines:
        uri, release, component, origin = line.split("\t")
        if component != "main" or (origin or own_distribution).lower() != "debian":
            continue
        if release.endswith("-security"):
            security = security or uri
        elif not release.endswith(("-updates", "-backports", "-proposed-updates")):
            main = main or uri
    return (main, security or _beside(main)) if main else None


def parse_options(lines: Iterable[str]) -> tuple[str, ...]:
    """Return the settings worth forwarding among `apt-config dump` lines."""
    kept = (line.strip().removesuffix(";") for line in lines if line.startswith(_FORWARDED))
    return tuple(line for line in kept if not line.endswith('""'))


def machine_archive() -> Archive:
    """Read this machine's apt configuration. Raises PlatformError when it knows no Debian archive."""
    options = parse_options(_lines("apt-config", "dump"))
    mirror = os.environ.get("TRAINYARD_DEBIAN_MIRROR")
    if mirror:
        return Archive(main=mirror, security=_beside(mirror), options=options)
    found = parse_targets(
        _lines("apt-get", "indextargets", "--format", _TARGET_FORMAT, "Created-By: Packages"), _distribution()
    )
    if found is None:
        raise PlatformError(
            "golden image: apt on this machine knows no Debian archive. Fix: set TRAINYARD_DEBIAN_MIRROR to the URL of "
            "one (it must hold debian/ and, beside it, debian-security/), for example http://HOST/debian"
        )
    return Archive(main=found[0], security=found[1], options=options)


def _beside(main: str) -> str:
    return f"{main.rstrip('/')}-security"


def _lines(*command: str) -> list[str]:
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise PlatformError(
            f"golden image: {command[0]} is missing. Fix: build the image on Debian or Ubuntu"
        ) from error
    except subprocess.CalledProcessError as error:
        raise PlatformError(f"golden image: {' '.join(command[:2])} failed: {error.stderr.strip()}") from error
    return done.stdout.splitlines()


def _distribution() -> str:
    for line in Path("/etc/os-release").read_text().splitlines():
        if line.startswith("ID="):
            return line.removeprefix("ID=").strip('"')
    return ""
