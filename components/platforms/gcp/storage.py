"""Shared storage that outlives the machines: Filestore, or a data disk on the head."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
from pulumi_gcp import compute, filestore

from components.node.parameters import SharedFiles
from components.plan.plan import GROUP_BLOCKS, ClusterPlan
from components.platforms.gcp.network import Networks
from components.platforms.gcp.spec import REGIONAL_TIERS, GcpSpec, region_of

_SHARE = "shared"
"""Name of the only share in the Filestore. Hosts mount <address>:/<name>."""
_NFS = "3"
"""NFS version that all tiers support, and the default in Google's API, gcloud and Google's Cluster Toolkit
(GoogleCloudPlatform/cluster-toolkit@1047080375af:modules/file-system/filestore/variables.tf). The basic tiers do not
support version 4.1, which also "requires RPCSEC_GSS Authentication", that is Kerberos and LDAP (Google, "About
supported file system protocols"). Both read 2026-11-22."""
_BASIC_TIERS = frozenset({"BASIC_HDD", "BASIC_SSD"})


def filestore_files(plan: ClusterPlan, networks: Networks, parent: pulumi.Resource) -> pulumi.Output[SharedFiles]:
    """Declare the Filestore and the firewall rule for its callbacks. Returns the location of the shared files."""
    spec, name = plan.platform_spec(GcpSpec), f"{plan.name}-shared"
    tier, zone = spec.filestore.tier, spec.filestore.zone or spec.zone
    made = filestore.Instance(
        name,
        name=name,
        tier=tier,
        location=region_of(zone) if tier in REGIONAL_TIERS else zone,
        protocol=f"NFS_V{_NFS}",
        file_shares=filestore.InstanceFileSharesArgs(
            name=_SHARE, capacity_gb=plan.storage.size_gib, nfs_export_options=_exports(plan)
        ),
        # For a network in the same project, the API returns the name and not the self link. The provider replaces the
        # instance if the program uses a different form
        # (cluster-toolkit@1047080375af:modules/file-system/filestore/main.tf).
        networks=[
            filestore.InstanceNetworkArgs(network=networks.primary, modes=["MODE_IPV4"], connect_mode="DIRECT_PEERING")
        ],
        # The basic tiers do not support deletion protection. Pulumi's `protect` covers all tiers.
        deletion_protection_enabled=None if tier in _BASIC_TIERS else spec.protect_storage,
        opts=pulumi.ResourceOptions(
            parent=parent,
            protect=spec.protect_storage,
            custom_timeouts=pulumi.CustomTimeouts(create="90m", update="90m", delete="30m"),
        ),
    )
    # In a preview, `networks` is the input value, which has no address. The value of `id` is unknown until the address
    # is known.
    addresses = made.networks.apply(lambda attached: attached[0].ip_addresses)
    server = pulumi.Output.all(made.id, addresses).apply(lambda known: str(known[1][0]))
    networks.allow_callbacks(f"{name}-callbacks", server)
    return server.apply(lambda address: SharedFiles(source=f"{address}:/{_SHARE}", nfs=_NFS))


def data_disk(plan: ClusterPlan, parent: pulumi.Resource) -> compute.Disk:
    """Declare the data disk with /home and /shared. A replacement head uses the same disk."""
    spec, name = plan.platform_spec(GcpSpec), f"{plan.name}-shared"
    return compute.Disk(
        name,
        name=name,
        zone=spec.zone,
        size=plan.storage.size_gib,
        type="pd-ssd",
        opts=pulumi.ResourceOptions(parent=parent, protect=spec.protect_storage),
    )


def _exports(plan: ClusterPlan) -> Sequence[filestore.InstanceFileSharesNfsExportOptionArgs]:
    """Return the export options. Only the head has root access.

    The address ranges of export options must not overlap, so the second option contains the address blocks of the node
    groups.
    """
    blocks = list(plan.network.subnets(prefixlen_diff=GROUP_BLOCKS.bit_length() - 1))
    option = filestore.InstanceFileSharesNfsExportOptionArgs
    return [
        option(ip_ranges=[f"{plan.head.private_ip}/32"], access_mode="READ_WRITE", squash_mode="NO_ROOT_SQUASH"),
        option(
            ip_ranges=[str(block) for block in blocks[1:]],
            access_mode="READ_WRITE",
            squash_mode="ROOT_SQUASH",
            anon_uid=65534,
            anon_gid=65534,
        ),
    ]
