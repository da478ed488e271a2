"""Shared storage that outlives the machines: NetApp Files, Azure Files, or a data disk on the head."""

from __future__ import annotations

import hashlib

import pulumi
from pulumi_azure_native import compute, netapp, storage

from components.node.parameters import SharedFiles
from components.plan.plan import ClusterPlan
from components.platforms.azure.network import Network
from components.platforms.azure.resource_group import ResourceGroup
from components.platforms.azure.spec import AzureSpec

_SHARE = "shared"
"""Name of the share, volume or disk."""
_GIB_PER_TIB = 1024
_BYTES_PER_GIB = 2**30
_ID_DOMAIN = "defaultv4iddomain.com"
"""ID domain of the service. On a client with a different domain, all files belong to the user `nobody` (Azure NetApp
Files documentation, "Configure NFSv4.1 ID domain", read 2026-11-22)."""
_SLOW = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")


def head_disk(plan: ClusterPlan, resource_group: ResourceGroup, parent: pulumi.Resource) -> compute.Disk:
    """Declare the data disk with /home and /shared. A replacement head uses the same disk."""
    name = f"{plan.name}-{_SHARE}"
    return compute.Disk(
        name,
        # If the zone changes, a second disk is created. The old disk remains until it is deleted.
        disk_name=name if resource_group.zone is None else f"{name}-zone-{resource_group.zone}",
        zones=resource_group.zones,
        sku=compute.DiskSkuArgs(name="Premium_LRS"),
        disk_size_gb=plan.storage.size_gib,
        creation_data=compute.CreationDataArgs(create_option="Empty"),
        **resource_group.common,
        opts=pulumi.ResourceOptions(parent=parent, protect=plan.platform_spec(AzureSpec).protect_storage),
    )


def azure_files(
    plan: ClusterPlan, network: Network, resource_group: ResourceGroup, parent: pulumi.Resource
) -> pulumi.Output[SharedFiles]:
    """Declare a premium NFS 4.1 share. Returns the location of the shared files.

    Only the nodes' subnet has access to the share.
    """
    options = pulumi.ResourceOptions(parent=parent, protect=plan.platform_spec(AzureSpec).protect_storage)
    account = storage.StorageAccount(
        f"{plan.name}-files",
        account_name=resource_group.id.apply(lambda group: _account_name(plan.name, group)),
        kind="FileStorage",
        sku=storage.SkuArgs(name="Premium_LRS"),
        # NFS traffic to Azure Files is not encrypted, so Azure would reject every mount if this option were true.
        enable_https_traffic_only=False,
        minimum_tls_version="TLS1_2",
        allow_blob_public_access=False,
        network_rule_set=storage.NetworkRuleSetArgs(
            default_action=storage.DefaultAction.DENY,
            bypass="None",
            virtual_network_rules=[storage.VirtualNetworkRuleArgs(virtual_network_resource_id=network.nodes)],
        ),
        **resource_group.common,
        opts=options,
    )
    share = storage.FileShare(
        f"{plan.name}-{_SHARE}",
        share_name=_SHARE,
        account_name=account.name,
        resource_group_name=resource_group.name,
        enabled_protocols="NFS",
        # The setting also applies to the head, which must create folders for other users.
        root_squash="NoRootSquash",
        share_quota=plan.storage.size_gib,
        opts=options,
    )
    # The share's id is an input so that hosts boot only after the share exists.
    known = pulumi.Output.all(account.name, share.id)
    return known.apply(lambda facts: SharedFiles(source=_nfs_source(facts[0]), nfs="4.1"))


def netapp_files(
    plan: ClusterPlan, network: Network, resource_group: ResourceGroup, parent: pulumi.Resource
) -> pulumi.Output[SharedFiles]:
    """Declare a capacity pool with one volume. Returns the location of the shared files."""
    name, share = f"{plan.name}-netapp", f"{plan.name}-{_SHARE}"
    spec, size_gib = plan.platform_spec(AzureSpec), plan.storage.size_gib
    kept = pulumi.ResourceOptions(parent=parent, protect=spec.protect_storage, custom_timeouts=_SLOW)
    account = netapp.Account(
        name, account_name=name, **resource_group.common, opts=pulumi.ResourceOptions(parent=parent)
    )
    pool = netapp.CapacityPool(
        f"{name}-pool",
        account_name=account.name,
        pool_name="pool",
        service_level=spec.netapp.service_level,
        # The size of a pool is a whole number of TiB.
        size=-(-size_gib // _GIB_PER_TIB) * _GIB_PER_TIB * _BYTES_PER_GIB,
        qos_type="Auto",
        **resource_group.common,
        opts=kept,
    )
    volume = netapp.CapacityPoolVolume(
        f"{name}-{_SHARE}",
        account_name=account.name,
        # Azure reports the name of a pool as <account>/<pool>.
        pool_name=pool.name.apply(lambda full: full.rpartition("/")[2]),
        volume_name=_SHARE,
        creation_token=share,
        subnet_id=network.netapp,
        usage_threshold=size_gib * _BYTES_PER_GIB,
        service_level=spec.netapp.service_level,
        protocol_types=["NFSv4.1"],
        # Only the head has root access.
        export_policy=netapp.VolumePropertiesExportPolicyArgs(
            rules=[
                _export(1, str(plan.head.private_ip), as_root=True),
                _export(2, str(plan.network), as_root=False),
            ]
        ),
        network_features="Standard",
        security_style="unix",
        unix_permissions="0755",
        zones=resource_group.zones,
        **resource_group.common,
        opts=pulumi.ResourceOptions.merge(kept, pulumi.ResourceOptions(replace_on_changes=["zones"])),
    )
    address = volume.mount_targets.apply(lambda targets: targets[0].ip_address)
    return address.apply(lambda ip: SharedFiles(source=f"{ip}:/{share}", nfs="4.1", id_domain=_ID_DOMAIN))


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
