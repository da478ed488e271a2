"""Rules and limits for Azure stacks."""

from __future__ import annotations

from collections.abc import Mapping

from components.plan.check import checks_in
from components.plan.plan import ClusterPlan
from components.platforms.azure import rules
from components.platforms.azure.spec import AzureSpec
from components.platforms.registry import Baking, LineItem, PlatformFacts, Tunnel
from components.platforms.shared_rules import access_rules, image_rules

SERVICES = {
    "authorization": "Microsoft.Authorization",
    "compute": "Microsoft.Compute",
    "managedidentity": "Microsoft.ManagedIdentity",
    "netapp": "Microsoft.NetApp",
    "network": "Microsoft.Network",
    "resources": "Microsoft.Resources",
    "storage": "Microsoft.Storage",
}
"""Mapping from Pulumi module to the resource provider that the module's types need (Microsoft, "Resource providers for
Azure services", read 2026-11-22). For example, azure-native:compute:VirtualMachine is in the "compute" module."""

ROLES = {
    "Contributor": "every resource in the cluster",
    "User Access Administrator": "the role with which the head starts and stops machines, only for elastic groups",
}
"""Mapping from role on the subscription to the resources that need it (Microsoft, "Azure built-in roles", read
2026-11-22)."""


def register_command(namespace: str) -> str:
    return f"az provider register --namespace {namespace}"


PROGRAM = "az"
"""The cloud's command-line tool."""
_GIB_PER_TIB = 1024


def _base_image(plan: ClusterPlan) -> str:
    """Return the base image, followed by the image version's region and subscription."""
    spec = plan.platform_spec(AzureSpec)
    return f"{spec.base_image(str(plan.image.reference))} {spec.region} {spec.subscription or ''}"


def _addresses(plan: ClusterPlan) -> int:
    # The NAT gateway has a public address, and so does the head (`via: public`) or the Bastion (`via: bastion`).
    return 1 if plan.access.via == "private" else 2


def _line_items(plan: ClusterPlan) -> tuple[LineItem, ...]:
    spec = plan.platform_spec(AzureSpec)
    return (
        LineItem(row="premium-ssd", count=len(plan.hosts), boot_disk_gib=spec.boot_disk_gib),
        LineItem(row="public-address", count=_addresses(plan)),
        LineItem(row="nat-gateway", count=1),
    )


def _quotas(plan: ClusterPlan) -> Mapping[str, int]:
    """Return a mapping from quota to the amount that resources other than machines need, in the quota's unit.

    The names are those that `az network list-usages` and `az netappfiles quota-limit list` print (read 2026-11-22).
    """
    needs = {"PublicIPAddresses": _addresses(plan)}
    shared = plan.storage
    if shared.kind == "azure_netapp":
        needs["totalTiBsPerSubscription"] = -(-shared.size_gib // _GIB_PER_TIB)
    return needs


FACTS = PlatformFacts(
    baking=Baking(base=_base_image),
    # The maximum size of custom data in bytes, before it is encoded in base64 (osProfile.customData in the SDK's
    # documentation, read 2026-11-22).
    user_data_limit=65535,
    checks=(*checks_in(rules), *access_rules("azure"), *image_rules("azure")),
    quotas=_quotas,
    line_items=_line_items,
    tunnel=lambda plan: Tunnel(PROGRAM, plan.platform_spec(AzureSpec).bastion_port, "cluster.platform.bastion_port"),
    power_channel=lambda _: {"platform": "azure"},
    # The Premium SSD limit (Microsoft, "Azure managed disk types").
    largest_disk_gib=32767,
    billed={
        "azure-native:compute:VirtualMachine": "machine",
        "azure-native:compute:Disk": "disk",
        "azure-native:netapp:CapacityPool": "NetApp capacity pool",
        "azure-native:storage:FileShare": "file share",
        "azure-native:network:BastionHost": "Bastion",
        "azure-native:network:NatGateway": "NAT gateway",
        "azure-native:network:PublicIPAddress": "public address",
    },
    storage_types=frozenset(
        {"azure-native:compute:Disk", "azure-native:netapp:CapacityPool", "azure-native:storage:FileShare"}
    ),
    gateway_types=frozenset({"azure-native:network:BastionHost"}),
    rows={
        "azure-native:network:NatGateway": "nat-gateway",
        "azure-native:network:PublicIPAddress": "public-address",
    },
)
