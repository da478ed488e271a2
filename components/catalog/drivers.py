"""NVIDIA driver versions that bootstrap stages install, and compatibility rules for pinned versions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from components.catalog.fact import Fact

_WORD = r"^[A-Za-z0-9][A-Za-z0-9.+~:-]*$"

_OLDEST_DRIVER = {12: 525, 13: 580}
"""Branch of the oldest supported driver for each major CUDA release.

NVIDIA, "CUDA Compatibility", minor version compatibility, table 1, read 2026-11-22.
"""


class _Part(BaseModel):
    """Base class for the parts of a lock."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Package(_Part):
    """A locked package. `sha256` is the digest of its file, or None if the file could not be read."""

    version: Annotated[str, Field(pattern=_WORD[:-1] + r"\*?$")]
    sha256: Annotated[str | None, Field(pattern=r"^[0-9a-f]{64}$")] = None


class AptArchive(_Part):
    """An apt archive.

    `key` is the path on the node or the URL of the signing key. `suite` is the suite and the components, as in
    sources.list(5). `url` is None for the distribution's archive, whose address is read from the node's apt sources.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    key: str
    fingerprint: str = "-"
    url: str | None = None
    suite: str


class DriverLock(Fact):
    """Compatible versions for one operating system. The name of the row is the name of the operating system."""

    versions: dict[str, str]
    """Versions by name, as in images.yaml. Every row contains `driver`."""
    module: str = "nvidia"
    """File name of the kernel module, without .ko."""
    archives: tuple[AptArchive, ...] = Field(min_length=1)
    packages: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(min_length=1)
    nvswitch: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(default_factory=dict)
    """Packages for nodes with NVSwitch. If empty, such nodes are not supported."""
    optional: dict[Annotated[str, Field(pattern=_WORD)], Package] = Field(default_factory=dict)
    """Packages that are skipped with a warning if the archive does not contain them."""
    files: dict[str, str] = Field(default_factory=dict)
    """Content of configuration files that the installation needs, by absolute path."""
    refused_gpus: dict[str, str] = Field(default_factory=dict)
    """GPU types that this driver does not support, with the reason."""
    unverified: tuple[str, ...] = ()
    """Facts that were not verified in the archive."""

    @property
    def driver(self) -> str:
        """The driver version without the package revision."""
        return self.versions["driver"]


class Archive(Fact):
    """A package archive for which a mirror can be set. `url` is an extended regular expression.

    `distribution` is true if the node's own apt sources contain the archive.
    """

    url: str
    distribution: bool = False


class Conflict(Fact):
    """Incompatible versions by name. `consequence` states what fails in an image with all these versions."""

    versions: dict[str, str] = Field(min_length=1)
    consequence: str


def incompatible(versions: Mapping[str, str], known: Mapping[str, Conflict]) -> Iterator[str]:
    """Yield the incompatible versions in an image or a lock, with the consequence.

    `known` contains the rows from conflicts.yaml.
    """
    for conflict in known.values():
        if conflict.versions.items() <= versions.items():
            named = ", ".join(f"{name} {version}" for name, version in conflict.versions.items())
            yield f"{named}: {conflict.consequence}"
    driver = versions.get("driver")
    if driver is None:
        return
    for name, title in (("fabric_manager", "fabric manager"), ("nscq", "NSCQ")):
        if versions.get(name, driver) != driver:
            yield f"driver {driver} and {title} {versions[name]}: GPUs with NVSwitch need equal versions"
    cuda = versions.get("cuda")
    oldest = _OLDEST_DRIVER.get(_major(cuda)) if cuda else None
    if oldest is not None and _major(driver) < oldest:
        yield f"driver {driver} and CUDA {cuda}: this release of CUDA needs driver {oldest} or later"
    built_for = re.search(r"\+cuda(.+)$", versions.get("nccl", ""))
    if cuda and built_for and _major(built_for[1]) > _major(cuda):
        yield f"CUDA {cuda} and NCCL for CUDA {built_for[1]}: NCCL needs the same or an older release of CUDA"


def _major(version: str) -> int:
    return int(version.partition(".")[0])
