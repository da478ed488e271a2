"""What every kind of shared storage is told, and the plainest of them: a disk of the head's own, which outlives it."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import pulumi

from components.cloud_init import SharedFiles
from components.platforms.azure.machine import DATA_DISK
from components.platforms.azure.site import Site
from components.platforms.narrow import narrow_import

with narrow_import("pulumi_azure_native.compute"):
    from pulumi_azure_native.compute._inputs import CreationDataArgs, DiskSkuArgs
    from pulumi_azure_native.compute.disk import Disk

SHARE = "shared"
"""Name of what is shared, wherever it is."""


@dataclass(frozen=True, kw_only=True)
class StorageArgs:
    """What is to be shared. `subnet` is the nodes' own, `netapp` the one delegated to NetApp Files."""

    size_gib: int
    protect: bool
    head: IPv4Address
    cidr: IPv4Network
    subnet: pulumi.Input[str]
    netapp: pulumi.Input[str] | None
    service_level: str


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Where hosts find the files; `disk` is the id of the disk that the head must get."""

    files: pulumi.Input[SharedFiles]
    disk: pulumi.Output[str] | None = None


def head_disk(args: StorageArgs, site: Site, parent: pulumi.Resource) -> Shared:
    """Declare the disk that the head serves /home and /shared from: a new head finds the old files."""
    name = f"{site.cluster}-{SHARE}"
    disk = Disk(
        name,
        # A disk leaves its zone by becoming another, which stands beside the old one until that is given up.
        disk_name=name if site.zone is None else f"{name}-zone-{site.zone}",
        resource_group_name=site.group,
        location=site.region,
        zones=site.zones,
        sku=DiskSkuArgs(name="Premium_LRS"),
        disk_size_gb=args.size_gib,
        creation_data=CreationDataArgs(create_option="Empty"),
        tags=site.tags,
        opts=pulumi.ResourceOptions(parent=parent, protect=args.protect),
    )
    return Shared(files=SharedFiles(disk=DATA_DISK), disk=disk.id)
