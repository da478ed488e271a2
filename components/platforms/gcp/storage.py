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
"""Name of the only share in the Filestore. Hosts mount <address>:/<name>."""
_NFS = "3"
"""NFS version that all tiers support, and the default in Google's API, gcloud and Google's Cluster Toolkit
(GoogleCloudPlatform/cluster-toolkit@1047080375af:modules/file-system/filestore/variables.tf). The basic tiers do not
support version 4.1, which also "requires RPCSEC_GSS Authentication", that is Kerberos and LDAP (Google, "About
supported file system protocols"). Both read 2026-11-22."""
_BASIC_TIERS = frozenset({"BASIC_HDD", "BASIC_SSD"})


@dataclass(frozen=True, kw_only=True)
class SharedStorageArgs:
    """Arguments for shared storage: a Filestore, or a data disk for the head."""

    name: str
    """Name of the Filestore or the disk."""
    kind: Literal["head_nfs", "filestore"]
    size_gib: int
    zone: str
    protect: bool = True
    """Whether Pulumi refuses to delete the storage."""
    network: Network | None = None
    """Network of the nodes, which a Filestore needs."""
    tier: str = "ZONAL"
    """Tier of the Filestore."""
    head: str = ""
    """Private address of the head, which has root access to a Filestore."""
    clients: Sequence[str] = ()
    """Networks (CIDR) of the other nodes, which have access to a Filestore without root rights. They must not contain
    the head's address, because the address ranges of export options must not overlap."""


class SharedStorage(pulumi.ComponentResource):
    """Storage that outlives the machines."""

    files: pulumi.Input[SharedFiles]
    """Location of the shared files, from which the nodes mount them."""
    disk: pulumi.Output[str] | None = None
    """Self link of the data disk, or None for a Filestore."""
    disk_id: pulumi.Output[str] | None = None
    """Id that changes if a new disk replaces the data disk."""

    def __init__(self, name: str, args: SharedStorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:gcp:SharedStorage", name, None, opts)
        self._args = args
        self._kept = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts), protect=args.protect)
        source: pulumi.Output[str] | None = None
        if args.kind == "head_nfs":
            # A replacement head uses the same disk, which contains /home and /shared.
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
        """Declare the Filestore and the firewall rule for its callbacks. Returns its NFS source."""
        args, name = self._args, self._args.name
        if args.network is None:
            raise ValueError("a Filestore needs `network`")
        made = filestore.Instance(
            name,
            name=name,
            tier=args.tier,
            location=region_of(args.zone) if args.tier in REGIONAL_TIERS else args.zone,
            protocol=f"NFS_V{_NFS}",
            file_shares=filestore.InstanceFileSharesArgs(
                name=_SHARE, capacity_gb=args.size_gib, nfs_export_options=_exports(args.head, args.clients)
            ),
            # For a network in the same project, the API returns the name and not the self link. The provider replaces
            # the instance if the program uses a different form
            # (cluster-toolkit@1047080375af:modules/file-system/filestore/main.tf).
            networks=[
                filestore.InstanceNetworkArgs(
                    network=args.network.primary, modes=["MODE_IPV4"], connect_mode="DIRECT_PEERING"
                )
            ],
            # The basic tiers do not support deletion protection. Pulumi's `protect` covers all tiers.
            deletion_protection_enabled=None if args.tier in _BASIC_TIERS else args.protect,
            opts=pulumi.ResourceOptions.merge(
                self._kept,
                pulumi.ResourceOptions(custom_timeouts=pulumi.CustomTimeouts(create="90m", update="90m", delete="30m")),
            ),
        )
        # In a preview, `networks` is the input value, which has no address. The value of `id` is unknown until the
        # address is known.
        addresses = made.networks.apply(lambda attached: attached[0].ip_addresses)
        server = pulumi.Output.all(made.id, addresses).apply(lambda known: str(known[1][0]))
        args.network.allow_callbacks(f"{name}-callbacks", server)
        return server.apply(lambda address: f"{address}:/{_SHARE}")


def _exports(head: str, clients: Sequence[str]) -> Sequence[filestore.InstanceFileSharesNfsExportOptionArgs]:
    """Return the export options. Only the head has root access."""
    option = filestore.InstanceFileSharesNfsExportOptionArgs
    return [
        option(ip_ranges=[f"{head}/32"], access_mode="READ_WRITE", squash_mode="NO_ROOT_SQUASH"),
        option(
            ip_ranges=list(clients),
            access_mode="READ_WRITE",
            squash_mode="ROOT_SQUASH",
            anon_uid=65534,
            anon_gid=65534,
        ),
    ]
