"""Checks for shared storage on Google Cloud."""

from __future__ import annotations

from collections.abc import Iterator

from components.plan.check import Broken, Level, Planned, check
from components.platforms.gcp.rules.machines import gcp_spec
from components.platforms.gcp.spec import REGIONAL_TIERS, region_of

_SIZES = {
    "BASIC_HDD": (1024, 65433, 1),
    "BASIC_SSD": (2560, 65433, 1),
    "ZONAL": (1024, 102400, 256),
    "REGIONAL": (1024, 102400, 256),
    "ENTERPRISE": (1024, 10240, 256),
}
"""Minimum size, maximum size and step size of each tier in GiB. Source: documentation for file_shares in SDK 10.2.0."""
_HIGH_BAND, _HIGH_STEP = 10240, 2560
"""Above 10 TiB, the ZONAL and REGIONAL tiers have larger steps."""


@check("gcp-storage-kind", Level.ERROR, "use filestore, head_nfs or external")
def kind_known(planned: Planned) -> Iterator[Broken]:
    """GCP supports the kind of shared storage."""
    kind = planned.plan.storage.kind
    if kind in {"azure_files", "azure_netapp"}:
        yield Broken(path="cluster.storage.shared.kind", rule=f"GCP does not offer {kind}")


@check("gcp-filestore-size", Level.ERROR, "use {fitting}")
def size_fits(planned: Planned) -> Iterator[Broken]:
    """The Filestore tier supports the size."""
    shared = planned.plan.storage
    if shared.kind != "filestore":
        return
    tier = gcp_spec(planned).filestore.tier
    (smallest, largest, step), wanted = _SIZES[tier], shared.size_gib
    if tier in {"ZONAL", "REGIONAL"} and wanted > _HIGH_BAND:
        step = _HIGH_STEP
    if smallest <= wanted <= largest and wanted % step == 0:
        return
    steps = f", in steps of {step}" if step > 1 else ""
    fitting = min(largest, max(smallest, -(-wanted // step) * step))
    yield Broken(
        path="cluster.storage.shared.size_gib",
        rule=f"Filestore {tier} has {smallest} to {largest} GiB{steps}, not {wanted}",
        words={"fitting": fitting},
    )


@check("gcp-filestore-region", Level.ERROR, "remove it: Filestore is then in {zone}")
def filestore_in_region(planned: Planned) -> Iterator[Broken]:
    """Filestore is in the nodes' region."""
    spec, zone = gcp_spec(planned), _filestore_zone(planned)
    if region_of(zone) == spec.region:
        return
    yield Broken(
        path="cluster.platform.filestore.zone",
        rule=f"{zone} is in a different region than the nodes ({spec.zone}). The mount works, but file access is "
        "slow: one team trained slowly for days with nodes in us-central1 and Filestore in asia-southeast1",
        words={"zone": spec.zone},
    )


@check("gcp-filestore-zone", Level.WARNING, "remove it, unless the nodes' zone has no Filestore")
def filestore_in_zone(planned: Planned) -> Iterator[Broken]:
    """Filestore is in the nodes' zone. Traffic between zones costs extra."""
    spec, zone = gcp_spec(planned), _filestore_zone(planned)
    if zone != spec.zone and region_of(zone) == spec.region and spec.filestore.tier not in REGIONAL_TIERS:
        yield Broken(
            path="cluster.platform.filestore.zone",
            rule=f"{zone} is not the nodes' zone {spec.zone}, so all file traffic crosses zones",
        )


def _filestore_zone(planned: Planned) -> str:
    """Return the zone of the Filestore, or the nodes' zone if the stack has no Filestore."""
    spec = gcp_spec(planned)
    return spec.filestore.zone or spec.zone if planned.plan.storage.kind == "filestore" else spec.zone
