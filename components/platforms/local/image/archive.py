"""The Debian archive for the golden image, taken from the apt configuration on this machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass

from components.platforms.local.process import run_program
from trainyard.errors import PlatformError

_SOURCE_FORMAT = "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)\t"
_FORWARDED = ("Acquire::Check-", "Acquire::Retries", "Acquire::http::", "Acquire::https::")
"""Prefixes of apt settings that the archive may need: proxies, certificates and the validity dates of a frozen
mirror."""


@dataclass(frozen=True, kw_only=True)
class Archive:
    """URIs of the Debian archive and of its security archive, and their apt settings."""

    main: str
    security: str
    options: tuple[str, ...] = ()

    def sources(self, suite: str) -> tuple[str, ...]:
        """Return the apt sources for a Debian release, its updates and its security updates."""
        return (
            f"deb {self.main} {suite} main",
            f"deb {self.main} {suite}-updates main",
            f"deb {self.security} {suite}-security main",
        )


def parse_targets(lines: Iterable[str], own_distribution: str) -> tuple[str, str] | None:
    """Return the (main, security) URIs from lines of `apt-get indextargets`, or None if they list no Debian archive.

    The origin is empty if apt has not read the indexes of the sources. In this case, `own_distribution`, the machine's
    os-release ID, is used.
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
    """Return the settings that the archive may need, from lines of `apt-config dump`."""
    kept = (line.strip().removesuffix(";") for line in lines if line.startswith(_FORWARDED))
    return tuple(line for line in kept if not line.endswith('""'))


def machine_archive() -> Archive:
    """Return the archive from this machine's apt configuration.

    Raises PlatformError if apt has no Debian archive and TRAINYARD_DEBIAN_MIRROR is not set.
    """
    options = parse_options(_lines("apt-config", "dump"))
    mirror = os.environ.get("TRAINYARD_DEBIAN_MIRROR")
    if mirror:
        return Archive(main=mirror, security=_beside(mirror), options=options)
    query = ("apt-get", "indextargets", "Created-By: Packages")
    # Without --no-release-info, apt-get omits sources whose indexes were not read (tested with apt 2.6.1, 2026-11-22).
    targets = _lines(*query, "--format", f"{_SOURCE_FORMAT}$(ORIGIN)") or _lines(
        *query, "--no-release-info", "--format", _SOURCE_FORMAT
    )
    found = parse_targets(targets, platform.freedesktop_os_release()["ID"])
    if found is None:
        raise PlatformError(
            "golden image: apt on this machine has no Debian archive. Fix: set TRAINYARD_DEBIAN_MIRROR to the URL of "
            "a Debian archive, for example http://HOST/debian. The security archive must be at HOST/debian-security"
        )
    return Archive(main=found[0], security=found[1], options=options)


def _beside(main: str) -> str:
    return f"{main.rstrip('/')}-security"


def _lines(*command: str) -> list[str]:
    return run_program("golden image", "build the image on Debian or Ubuntu", *command).splitlines()
