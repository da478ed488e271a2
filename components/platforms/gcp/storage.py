"""Shared storage that outlives the machines: Filestore, or a data disk on the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pulumi
from pulumi_gcp import compute, filestore

from components.node.parameters import SharedFiles
from components.platforms.base import moved_from
from components.platforms.gcp.network import Network
from components.platforms.gcp.nodes import DATA_DISK
from components.platforms.gcp.spec import REGIONAL_TIERS, region_of

_SHARE = "shared"
"""Name of the Filestore's only share. Hosts mount <address>:/<name>."""
_NFS = "3"
"""NFS version that all tiers support. It is also the default of Google's API, gcloud and Google's Cluster Toolkit
(GoogleCloudPlatform/cluster-toolkit@1047080375af:modules/file-system/filestore/variables.tf). The basic tiers do not
support version 4.1, which also "requires RPCSEC_GSS Authentication", that is, Kerberos and LDAP (Google, "About
supported file system protocols"; both read 2026-11-22)."""
_BASIC_TIERS = frozenset({"BASIC_HDD", "BASIC_SSD"})


@dataclass(frozen=True, kw_only=True)
class SharedStorageArgs:
    """Arguments for shared storage: a Filestore, or a data disk for the head."""

    name: str
    """The name of the Filestore or the data disk."""
    kind: Literal["head_nfs", "filestore"]
    size_gib: int
    zone: str
    protect: bool = True
    """Whether Pulumi refuses to delete the storage."""
    network: Network | None = None
    """The nodes' network, which a Filestore needs."""
    tier: str = "ZONAL"
    """The Filestore's tier."""
    head: str = ""
    """The head's private address. Only the head has root access to a Filestore."""
    clients: Sequence[str] = ()
    """Networks (CIDR) of the other nodes, which have access to a Filestore without root rights. `clients` must not
    contain the head's address, because the address ranges of a share's export options must not overlap."""


class SharedStorage(pulumi.ComponentResource):
    """Storage that outlives the machines."""

    files: pulumi.Input[SharedFiles]
    """Location of the shared files."""
    disk: pulumi.Output[str] | None = None
    """The data disk's self link, or None for a Filestore."""
    disk_id: pulumi.Output[str] | None = None
    """Id that changes if a new disk replaces the data disk."""

    def __init__(self, name: str, args: SharedStorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:gcp:SharedStorage", name, None, opts)
        self._args = args
        self._kept = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts), protect=args.protect)
        source: pulumi.Output[str] | None = None
        if args.kind == "head_nfs":
            # The disk contains /home and /shared, and remains when the head is replaced.
            disk = compute.Disk(
                args.name, name=args.name, zone=args.zone, size=args.size_gib, type="pd-ssd", opts=self._kept
            )
            self.disk, self.disk_id = disk.self_link, disk.disk_id
            self.files = SharedFiles(disk=f"/dev/disk/by-id/google-{DATA_DISK}")
        else:
            source = self._filestore()
            self.files = source.apply(lambda found: SharedFiles(source=found, nfs=_NFS))
        self.register_outputs({"source": source, "disk": self.disk})

    def _filestore(self) -> pulumi.Output[str]:
        """Declare the Filestore and the firewall rule for its callbacks, and return its NFS source."""
        args, name = self._args, self._args.name
        if args.network is None:
            raise ValueError("a Filestore needs `network`")
        option = filestore.InstanceFileSharesNfsExportOptionArgs
        root = option(ip_ranges=[f"{args.head}/32"], access_mode="READ_WRITE", squash_mode="NO_ROOT_SQUASH")
        others = option(ip_ranges=list(args.clients), access_mode="READ_WRITE", squash_mode="ROOT_SQUASH")
        others.anon_uid = others.anon_gid = 65534
        made = filestore.Instance(
            name,
            name=name,
            tier=args.tier,
            location=region_of(args.zone) if args.tier in REGIONAL_TIERS else args.zone,
            protocol=f"NFS_V{_NFS}",
            file_shares=filestore.InstanceFileSharesArgs(
                name=_SHARE, capacity_gb=args.size_gib, nfs_export_options=[root, others]
            ),
            # The API returns the name of a network in the same project instead of its self link. If the program used
            # the self link, the provider would replace the instance
            # (cluster-toolkit@1047080375af:modules/file-system/filestore/main.tf).
            networks=[
                filestore.InstanceNetworkArgs(
                    network=args.network.primary, modes=["MODE_IPV4"], connect_mode="DIRECT_PEERING"
                )
            ],
            # The basic tiers do not support deletion protection, but Pulumi's `protect` covers all tiers.
            deletion_protection_enabled=None if args.tier in _BASIC_TIERS else args.protect,
            opts=pulumi.ResourceOptions.merge(
                self._kept,
                pulumi.ResourceOptions(custom_timeouts=pulumi.CustomTimeouts(create="90m", update="90m", delete="30m")),
            ),
        )
        # Until the instance exists, `networks` has no address, but `id` is unknown, so the function does not run.
        addresses = made.networks.apply(lambda attached: attached[0].ip_addresses)
        server = pulumi.Output.all(made.id, addresses).apply(lambda known: str(known[1][0]))
        args.network.allow_callbacks(f"{name}-callbacks", server)
        return server.apply(lambda address: f"{address}:/{_SHARE}")
