"""What Filestore refuses, and where it is slow although it works."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from components.checks.base import Planned
from components.errors import Problem
from components.platforms.gcp.rules_machines import gcp_spec
from components.platforms.gcp.spec import region_of


@dataclass(frozen=True)
class _Sizes:
    """Sizes of a tier in GiB; `step` counts from `smallest`. Source: SDK 10.2.0's documentation of file_shares."""

    smallest: int
    largest: int
    step: int


_SIZES = {
    "BASIC_HDD": _Sizes(1024, 65433, 1),
    "BASIC_SSD": _Sizes(2560, 65433, 1),
    "ZONAL": _Sizes(1024, 102400, 256),
    "REGIONAL": _Sizes(1024, 102400, 256),
    "ENTERPRISE": _Sizes(1024, 10240, 256),
}
_OF_A_REGION = frozenset({"REGIONAL", "ENTERPRISE"})
"""Tiers that stand in three zones at once."""
_HIGH_BAND, _HIGH_STEP = 10240, 2560
"""From ten TiB on, ZONAL and REGIONAL grow in larger steps."""


def kind_known(planned: Planned) -> Iterator[Problem]:
    """The shared storage is one that GCP has."""
    kind = planned.spec.storage.shared.kind
    if kind in {"azure_files", "azure_netapp"}:
        yield Problem(
            path="cluster.storage.shared.kind",
            rule=f"{kind} is not a storage of GCP",
            fix="use filestore, head_nfs or external",
        )


def size_fits(planned: Planned) -> Iterator[Problem]:
    """The size is one that the tier comes in."""
    shared = planned.spec.storage.shared
    if shared.kind != "filestore":
        return
    tier = gcp_spec(planned).filestore.tier
    sizes, asked = _SIZES[tier], shared.size_gib
    high = tier in {"ZONAL", "REGIONAL"} and asked > _HIGH_BAND
    step = _HIGH_STEP if high else sizes.step
    if sizes.smallest <= asked <= sizes.largest and asked % step == 0:
        return
    steps = f", in steps of {step}" if step > 1 else ""
    fitting = min(sizes.largest, max(sizes.smallest, -(-asked // step) * step))
    yield Problem(
        path="cluster.storage.shared.size_gib",
        rule=f"Filestore {tier} comes from {sizes.smallest} to {sizes.largest} GiB{steps}, not in {asked}",
        fix=f"use {fitting}",
    )


def stands_near(planned: Planned) -> Iterator[Problem]:
    """Filestore stands in the nodes' region: elsewhere it answers, slowly, and nobody notices for days."""
    spec = gcp_spec(planned)
    asked = spec.filestore.zone
    if planned.spec.storage.shared.kind != "filestore" or asked is None or region_of(asked) == spec.region:
        return
    yield Problem(
        path="cluster.platform.filestore.zone",
        rule=f"{asked} is in another region than the nodes ({spec.zone}). Such a mount works, and that is the trap: a "
        "team once had its nodes in us-central1 and its Filestore in asia-southeast1, and trained slowly until "
        "somebody looked",
        fix=f"leave it out: it then stands in {spec.zone}",
    )


def stands_in_zone(planned: Planned) -> Iterator[Problem]:
    """Within a region, the nodes' own zone is the nearest and carries no charge for traffic between zones."""
    spec = gcp_spec(planned)
    asked = spec.filestore.zone
    regional = spec.filestore.tier in _OF_A_REGION
    if planned.spec.storage.shared.kind != "filestore" or regional or asked in {None, spec.zone}:
        return
    if asked is not None and region_of(asked) == spec.region:
        yield Problem(
            path="cluster.platform.filestore.zone",
            rule=f"{asked} is another zone than the nodes' {spec.zone}: every file crosses between them",
            fix="leave it out, unless the nodes' zone has no Filestore",
        )
