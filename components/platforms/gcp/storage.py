"""Shared storage that outlives the machines: Filestore, or a disk of the head. Both are protected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

import pulumi
from pulumi_gcp import filestore

from components.plan import GROUP_BLOCKS
from components.platforms.gcp.sdk import narrow_import
from components.platforms.gcp.spec import region_of

with narrow_import():
    from pulumi_gcp.compute.disk import Disk

SHARE = "shared"
"""Name of the only share of the Filestore; hosts mount <address>:/<this>."""
NFS = "3"
"""NFS version of every tier. It is the default of Google's API, of gcloud and of Google's cluster toolkit
(GoogleCloudPlatform/cluster-toolkit@1047080375af:modules/file-system/filestore/variables.tf). Version 4.1 is not
available in the basic tiers, and "requires RPCSEC_GSS Authentication", that is Kerberos and LDAP (Google, "About
supported file system protocols"). Both read 2026-11-22."""

_REGIONAL = frozenset({"REGIONAL", "ENTERPRISE"})
_BASIC = frozenset({"BASIC_HDD", "BASIC_SSD"})


@dataclass(frozen=True, kw_only=True)
class FilestoreArgs:
    """A Filestore to be. All values but the network are plain."""

    name: str
    tier: str
    zone: str
    size_gib: int
    network: pulumi.Input[str]
    """Name of the network. The API reports the name of a network of its own project, and the provider replaces the
    instance if the program gives another form (cluster-toolkit@1047080375af:modules/file-system/filestore/main.tf)."""
    head: IPv4Address
    cidr: IPv4Network
    """The cluster's network; only hosts in it may mount the share."""
    protect: bool


@dataclass(frozen=True, kw_only=True)
class DataDiskArgs:
    """A disk to be."""

    name: str
    zone: str
    size_gib: int
    protect: bool


def filestore_instance(args: FilestoreArgs, parent: pulumi.Resource) -> filestore.Instance:
    """Declare the Filestore beside the nodes: in a zone, or in the region for tiers of a region's reach."""
    share = filestore.InstanceFileSharesArgs(
        name=SHARE, capacity_gb=args.size_gib, nfs_export_options=_exports(args.head, args.cidr)
    )
    network = filestore.InstanceNetworkArgs(network=args.network, modes=["MODE_IPV4"], connect_mode="DIRECT_PEERING")
    return filestore.Instance(
        args.name,
        name=args.name,
        tier=args.tier,
        location=region_of(args.zone) if args.tier in _REGIONAL else args.zone,
        protocol=f"NFS_V{NFS}",
        file_shares=share,
        networks=[network],
        # The basic tiers have no deletion protection of their own; Pulumi's `protect` covers every tier.
        deletion_protection_enabled=None if args.tier in _BASIC else args.protect,
        opts=pulumi.ResourceOptions(
            parent=parent,
            protect=args.protect,
            custom_timeouts=pulumi.CustomTimeouts(create="90m", update="90m", delete="30m"),
        ),
    )


def data_disk(args: DataDiskArgs, parent: pulumi.Resource) -> Disk:
    """Declare the disk that the head serves /home and /shared from: a new head finds the old files."""
    return Disk(
        args.name,
        name=args.name,
        zone=args.zone,
        size=args.size_gib,
        type="pd-ssd",
        opts=pulumi.ResourceOptions(parent=parent, protect=args.protect),
    )


def _exports(head: IPv4Address, cidr: IPv4Network) -> Sequence[filestore.InstanceFileSharesNfsExportOptionArgs]:
    """The head may act as root, to make folders for others; ranges of two options must not overlap."""
    blocks = list(cidr.subnets(prefixlen_diff=GROUP_BLOCKS.bit_length() - 1))
    option = filestore.InstanceFileSharesNfsExportOptionArgs
    return [
        option(ip_ranges=[f"{head}/32"], access_mode="READ_WRITE", squash_mode="NO_ROOT_SQUASH"),
        option(
            ip_ranges=[str(block) for block in blocks[1:]],
            access_mode="READ_WRITE",
            squash_mode="ROOT_SQUASH",
            anon_uid=65534,
            anon_gid=65534,
        ),
    ]
