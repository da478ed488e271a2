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
"""The name of the share or volume, and the suffix of the disk's name."""
_GIB_PER_TIB = 1024
_BYTES_PER_GIB = 2**30
_ID_DOMAIN = "defaultv4iddomain.com"
"""The service's ID domain. On a client with a different domain, all files would belong to the user `nobody` (Azure
NetApp Files documentation, "Configure NFSv4.1 ID domain", read 2026-11-22)."""
_SLOW = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")


@dataclass(frozen=True, kw_only=True)
class SharedStorageArgs:
    """Arguments for shared storage. `name` is the cluster's name."""

    resource_group: ResourceGroup
    name: str
    kind: Literal["head_nfs", "azure_files", "azure_netapp"]
    size_gib: int
    protect: bool = True
    """Whether Pulumi refuses to delete the storage."""
    subnet_id: pulumi.Input[str] | None = None
    """Subnet that has access to Azure Files or is delegated to NetApp Files."""
    head: str = ""
    """The head's private address. Only the head has root access to NetApp Files."""
    clients: str = ""
    """The nodes' network (CIDR), which has access to NetApp Files without root rights."""
    service_level: str = "Premium"


class SharedStorage(pulumi.ComponentResource):
    """Storage that outlives the machines: a data disk for the head, a premium NFS share, or a NetApp volume."""

    files: pulumi.Input[SharedFiles]
    """Location of the shared files."""
    disk_id: pulumi.Output[str] | None = None
    """The data disk's resource id, or None for Azure Files and NetApp Files."""
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
        """Declare the data disk, which contains /home and /shared and remains when the head is replaced."""
        group, name = self._args.resource_group, f"{self._args.name}-{_SHARE}"
        return compute.Disk(
            name,
            # If the zone changes, a second disk is created, and the old one remains until it is deleted.
            disk_name=name if group.zone is None else f"{name}-zone-{group.zone}",
            zones=group.zones,
            sku=compute.DiskSkuArgs(name="Premium_LRS"),
            disk_size_gb=self._args.size_gib,
            creation_data=compute.CreationDataArgs(create_option="Empty"),
            **group.common,
            opts=self._kept,
        )

    def _azure_files(self) -> pulumi.Output[str]:
        """Declare a premium NFS 4.1 share that only the subnet can access, and return its NFS source."""
        group, cluster = self._args.resource_group, self._args.name
        account = storage.StorageAccount(
            f"{cluster}-files",
            account_name=group.id.apply(lambda found: _account_name(cluster, found)),
            kind="FileStorage",
            sku=storage.SkuArgs(name="Premium_LRS"),
            # With HTTPS only, Azure would reject every mount, because NFS to Azure Files is not encrypted.
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
            # The setting also applies to the head, which must be able to create other users' folders.
            root_squash="NoRootSquash",
            share_quota=self._args.size_gib,
            opts=self._kept,
        )
        # The share's id is an input, so that no host boots before the share exists.
        return pulumi.Output.all(account.name, share.id).apply(
            lambda facts: f"{facts[0]}.file.core.windows.net:/{facts[0]}/{_SHARE}"
        )

    def _netapp_files(self) -> pulumi.Output[str]:
        args, group = self._args, self._args.resource_group
        name, share = f"{args.name}-netapp", f"{args.name}-{_SHARE}"
        kept = pulumi.ResourceOptions.merge(self._kept, pulumi.ResourceOptions(custom_timeouts=_SLOW))
        account = netapp.Account(name, account_name=name, **group.common, opts=self._child)
        pool = netapp.CapacityPool(
            f"{name}-pool",
            account_name=account.name,
            pool_name="pool",
            service_level=args.service_level,
            # A pool's size is a whole number of TiB.
            size=-(-args.size_gib // _GIB_PER_TIB) * _GIB_PER_TIB * _BYTES_PER_GIB,
            qos_type="Auto",
            **group.common,
            opts=kept,
        )
        volume = netapp.CapacityPoolVolume(
            f"{name}-{_SHARE}",
            account_name=account.name,
            # Azure reports a pool's name as <account>/<pool>.
            pool_name=pool.name.apply(lambda full: full.rpartition("/")[2]),
            volume_name=_SHARE,
            creation_token=share,
            subnet_id=_required(args.subnet_id),
            usage_threshold=args.size_gib * _BYTES_PER_GIB,
            service_level=args.service_level,
            protocol_types=["NFSv4.1"],
            export_policy=netapp.VolumePropertiesExportPolicyArgs(
                rules=[
                    netapp.ExportPolicyRuleArgs(
                        rule_index=index,
                        allowed_clients=clients,
                        nfsv41=True,
                        nfsv3=False,
                        cifs=False,
                        unix_read_only=False,
                        unix_read_write=True,
                        has_root_access=clients == args.head,
                    )
                    for index, clients in enumerate((args.head, args.clients), 1)
                ]
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

    The name contains a hash of the resource group's id, which includes the subscription's id.
    """
    return cluster.replace("-", "") + hashlib.sha256(group_id.lower().encode()).hexdigest()[:8]
