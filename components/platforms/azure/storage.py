"""Shared storage that outlives the machines: NetApp Files, Azure Files, or a data disk on the head."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import pulumi
from pulumi_azure_native import compute, netapp, storage

from components.node.parameters import SharedFiles
from components.platforms.azure.network import ResourceGroup
from components.platforms.azure.nodes import DATA_DISK
from components.platforms.base import moved_from

_SHARE = "shared"
"""Name of the share, volume or disk."""
_GIB_PER_TIB = 1024
_BYTES_PER_GIB = 2**30
_ID_DOMAIN = "defaultv4iddomain.com"
"""ID domain of the service. On a client with a different domain, all files belong to the user `nobody` (Azure NetApp
Files documentation, "Configure NFSv4.1 ID domain", read 2026-11-22)."""
_SLOW = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")


@dataclass(frozen=True, kw_only=True)
class SharedStorageArgs:
    """Arguments for shared storage. `name` is the name of the cluster."""

    resource_group: ResourceGroup
    name: str
    kind: Literal["head_nfs", "azure_files", "azure_netapp"]
    size_gib: int
    protect: bool = True
    """Whether Pulumi refuses to delete the storage."""
    subnet_id: pulumi.Input[str] | None = None
    """Subnet that may connect to Azure Files, or the subnet that is delegated to NetApp Files."""
    head: str = ""
    """Private address of the head, which has root access to NetApp Files."""
    clients: str = ""
    """Network of all nodes (CIDR), which have access to NetApp Files without root rights."""
    service_level: str = "Premium"
    """Service level of NetApp Files."""


class SharedStorage(pulumi.ComponentResource):
    """Storage that outlives the machines: a data disk for the head, a premium NFS share, or a NetApp volume."""

    files: pulumi.Input[SharedFiles]
    """Location of the shared files, from which the nodes mount them."""
    disk_id: pulumi.Output[str] | None = None
    """Resource id of the data disk, or None for a service."""
    disk_unique_id: pulumi.Output[str] | None = None
    """Id that changes if a new disk replaces the data disk."""

    def __init__(self, name: str, args: SharedStorageArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:SharedStorage", name, None, opts)
        self._args = args
        self._child = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts))
        self._kept = pulumi.ResourceOptions.merge(self._child, pulumi.ResourceOptions(protect=args.protect))
        source: pulumi.Output[str] | None = None
        if args.kind == "head_nfs":
            disk = self._disk()
            self.files, self.disk_id, self.disk_unique_id = SharedFiles(disk=DATA_DISK), disk.id, disk.unique_id
        elif args.kind == "azure_files":
            source = self._azure_files()
            self.files = source.apply(lambda found: SharedFiles(source=found, nfs="4.1"))
        else:
            source = self._netapp_files()
            self.files = source.apply(lambda found: SharedFiles(source=found, nfs="4.1", id_domain=_ID_DOMAIN))
        self.register_outputs({"source": source, "diskId": self.disk_id})

    def _disk(self) -> compute.Disk:
        """Declare the data disk with /home and /shared. A replacement head uses the same disk."""
        group, name = self._args.resource_group, f"{self._args.name}-{_SHARE}"
        return compute.Disk(
            name,
            # If the zone changes, a second disk is created. The old disk remains until it is deleted.
            disk_name=name if group.zone is None else f"{name}-zone-{group.zone}",
            zones=group.zones,
            sku=compute.DiskSkuArgs(name="Premium_LRS"),
            disk_size_gb=self._args.size_gib,
            creation_data=compute.CreationDataArgs(create_option="Empty"),
            **group.common,
            opts=self._kept,
        )

    def _azure_files(self) -> pulumi.Output[str]:
        """Declare a premium NFS 4.1 share, which only the subnet can access. Returns its NFS source."""
        group, cluster = self._args.resource_group, self._args.name
        account = storage.StorageAccount(
            f"{cluster}-files",
            account_name=group.id.apply(lambda found: _account_name(cluster, found)),
            kind="FileStorage",
            sku=storage.SkuArgs(name="Premium_LRS"),
            # NFS traffic to Azure Files is not encrypted, so Azure would reject every mount if this option were true.
            enable_https_traffic_only=False,
            minimum_tls_version="TLS1_2",
            allow_blob_public_access=False,
            network_rule_set=storage.NetworkRuleSetArgs(
                default_action=storage.DefaultAction.DENY,
                bypass="None",
                virtual_network_rules=[
                    storage.VirtualNetworkRuleArgs(virtual_network_resource_id=_required(self._args.subnet_id))
                ],
            ),
            **group.common,
            opts=self._kept,
        )
        share = storage.FileShare(
            f"{cluster}-{_SHARE}",
            share_name=_SHARE,
            account_name=account.name,
            resource_group_name=group.name,
            enabled_protocols="NFS",
            # The setting also applies to the head, which must create folders for other users.
            root_squash="NoRootSquash",
            share_quota=self._args.size_gib,
            opts=self._kept,
        )
        # The share's id is an input so that hosts boot only after the share exists.
        return pulumi.Output.all(account.name, share.id).apply(lambda facts: _nfs_source(facts[0]))

    def _netapp_files(self) -> pulumi.Output[str]:
        """Declare a capacity pool with one volume. Returns its NFS source."""
        args, group = self._args, self._args.resource_group
        name, share = f"{args.name}-netapp", f"{args.name}-{_SHARE}"
        kept = pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(custom_timeouts=_SLOW))
        account = netapp.Account(name, account_name=name, **group.common, opts=self._child)
        pool = netapp.CapacityPool(
            f"{name}-pool",
            account_name=account.name,
            pool_name="pool",
            service_level=args.service_level,
            # The size of a pool is a whole number of TiB.
            size=-(-args.size_gib // _GIB_PER_TIB) * _GIB_PER_TIB * _BYTES_PER_GIB,
            qos_type="Auto",
            **group.common,
            opts=kept,
        )
        volume = netapp.CapacityPoolVolume(
            f"{name}-{_SHARE}",
            account_name=account.name,
            # Azure reports the name of a pool as <account>/<pool>.
            pool_name=pool.name.apply(lambda full: full.rpartition("/")[2]),
            volume_name=_SHARE,
            creation_token=share,
            subnet_id=_required(args.subnet_id),
            usage_threshold=args.size_gib * _BYTES_PER_GIB,
            service_level=args.service_level,
            protocol_types=["NFSv4.1"],
            # Only the head has root access.
            export_policy=netapp.VolumePropertiesExportPolicyArgs(
                rules=[_export(1, args.head, as_root=True), _export(2, args.clients, as_root=False)]
            ),
            network_features="Standard",
            security_style="unix",
            unix_permissions="0755",
            zones=group.zones,
            **group.common,
            opts=pulumi.ResourceOptions.merge(kept, pulumi.ResourceOptions(replace_on_changes=["zones"])),
        )
        address = volume.mount_targets.apply(lambda targets: targets[0].ip_address)
        return address.apply(lambda ip: f"{ip}:/{share}")


def _required(subnet_id: pulumi.Input[str] | None) -> pulumi.Input[str]:
    if subnet_id is None:
        raise ValueError("azure_files and azure_netapp need `subnet_id`")
    return subnet_id


def _account_name(cluster: str, group_id: str) -> str:
    """Return a globally unique account name of 3 to 24 lowercase letters and digits.

    The id of the resource group contains the id of the subscription.
    """
    return cluster.replace("-", "") + hashlib.sha256(group_id.lower().encode()).hexdigest()[:8]


def _nfs_source(account: str) -> str:
    return f"{account}.file.core.windows.net:/{account}/{_SHARE}"


def _export(index: int, clients: str, *, as_root: bool) -> netapp.ExportPolicyRuleArgs:
    return netapp.ExportPolicyRuleArgs(
        rule_index=index,
        allowed_clients=clients,
        nfsv41=True,
        nfsv3=False,
        cifs=False,
        unix_read_only=False,
        unix_read_write=True,
        has_root_access=as_root,
    )
