"""NetApp Files as the cluster's shared storage."""

from __future__ import annotations

import pulumi
from pulumi_azure_native import netapp

from components.cloud_init import SharedFiles
from components.platforms.azure.site import Site
from components.platforms.azure.storage import SHARE, Shared, StorageArgs

_TIB = 1024
_GIB_BYTES = 2**30
_ID_DOMAIN = "defaultv4iddomain.com"
"""Fixed by the service: with another domain on a client, its files belong to nobody (Azure NetApp Files documentation,
"Configure NFSv4.1 ID domain", read 2026-11-22)."""
_SLOW = pulumi.CustomTimeouts(create="60m", update="60m", delete="60m")


def netapp_files(args: StorageArgs, site: Site, parent: pulumi.Resource) -> Shared:
    """Declare a pool of whole TiB and one volume in it; only the head may act as root on it."""
    if args.netapp is None:
        raise ValueError("NetApp Files needs the subnet that is delegated to it")
    name = f"{site.cluster}-netapp"
    child = pulumi.ResourceOptions(parent=parent)
    kept = pulumi.ResourceOptions(parent=parent, protect=args.protect, custom_timeouts=_SLOW)
    account = netapp.Account(
        name,
        account_name=name,
        resource_group_name=site.group,
        location=site.region,
        tags=site.tags,
        opts=child,
    )
    pool = netapp.CapacityPool(
        f"{name}-pool",
        account_name=account.name,
        pool_name="pool",
        service_level=args.service_level,
        size=pool_bytes(args.size_gib),
        qos_type="Auto",
        resource_group_name=site.group,
        location=site.region,
        tags=site.tags,
        opts=kept,
    )
    volume = netapp.CapacityPoolVolume(
        f"{name}-{SHARE}",
        account_name=account.name,
        # Azure's own name of a pool is <account>/<pool>.
        pool_name=pool.name.apply(lambda full: full.rpartition("/")[2]),
        volume_name=SHARE,
        creation_token=f"{site.cluster}-{SHARE}",
        subnet_id=args.netapp,
        usage_threshold=args.size_gib * _GIB_BYTES,
        service_level=args.service_level,
        protocol_types=["NFSv4.1"],
        export_policy=netapp.VolumePropertiesExportPolicyArgs(
            rules=[
                _export(1, str(args.head), as_root=True),
                _export(2, str(args.cidr), as_root=False),
            ]
        ),
        network_features="Standard",
        security_style="unix",
        unix_permissions="0755",
        zones=site.zones,
        resource_group_name=site.group,
        location=site.region,
        tags=site.tags,
        opts=pulumi.ResourceOptions.merge(kept, pulumi.ResourceOptions(replace_on_changes=["zones"])),
    )
    address = volume.mount_targets.apply(lambda targets: targets[0].ip_address)
    source = address.apply(lambda ip: f"{ip}:/{site.cluster}-{SHARE}")
    return Shared(files=source.apply(lambda where: SharedFiles(source=where, nfs="4.1", id_domain=_ID_DOMAIN)))


def pool_bytes(size_gib: int) -> int:
    """Return a pool's size in bytes: the next whole TiB."""
    return -(-size_gib // _TIB) * _TIB * _GIB_BYTES


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
