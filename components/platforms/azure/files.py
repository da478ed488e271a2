"""Azure Files as the cluster's shared storage."""

from __future__ import annotations

import hashlib

import pulumi
from pulumi_azure_native import storage

from components.cloud_init import SharedFiles
from components.platforms.azure.site import Site
from components.platforms.azure.storage import SHARE, Shared, StorageArgs


def azure_files(args: StorageArgs, site: Site, parent: pulumi.Resource) -> Shared:
    """Declare a premium share that speaks NFS 4.1 to the nodes' subnet and to nobody else."""
    options = pulumi.ResourceOptions(parent=parent, protect=args.protect)
    account = storage.StorageAccount(
        f"{site.cluster}-files",
        # Names of accounts are the whole world's; the resource group's id holds the subscription's.
        account_name=site.group_id.apply(lambda group: account_name(site.cluster, group)),
        resource_group_name=site.group,
        location=site.region,
        kind="FileStorage",
        sku=storage.SkuArgs(name="Premium_LRS"),
        # NFS has no encryption of its own here; with this on, every mount is refused.
        enable_https_traffic_only=False,
        minimum_tls_version="TLS1_2",
        allow_blob_public_access=False,
        network_rule_set=storage.NetworkRuleSetArgs(
            default_action=storage.DefaultAction.DENY,
            bypass="None",
            virtual_network_rules=[storage.VirtualNetworkRuleArgs(virtual_network_resource_id=args.subnet)],
        ),
        tags=site.tags,
        opts=options,
    )
    share = storage.FileShare(
        f"{site.cluster}-{SHARE}",
        share_name=SHARE,
        account_name=account.name,
        resource_group_name=site.group,
        enabled_protocols="NFS",
        # For the whole share or not at all, and the head must make folders for others.
        root_squash="NoRootSquash",
        share_quota=args.size_gib,
        opts=options,
    )
    # The share's id is waited for, so that no host boots before there is something to mount.
    known = pulumi.Output.all(account.name, share.id)
    return Shared(files=known.apply(lambda facts: SharedFiles(source=files_source(facts[0]), nfs="4.1")))


def account_name(cluster: str, group_id: str) -> str:
    """Return a name of 3 to 24 lowercase letters and digits that no other resource group's account has."""
    return cluster.replace("-", "") + hashlib.sha256(group_id.lower().encode()).hexdigest()[:8]


def files_source(account: str) -> str:
    """Return what hosts mount of an account's share."""
    return f"{account}.file.core.windows.net:/{account}/{SHARE}"
