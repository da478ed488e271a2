"""Checks for the region and the networks of an Azure stack, and for access to the head."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from components.plan.check import Broken, Level, Planned, check
from components.plan.plan import ClusterPlan
from components.platforms.azure.places import region_facts
from components.platforms.azure.rules.machines import asked_for, azure_spec

_INFINIBAND_NETWORK = IPv4Network("172.16.0.0/16")
"""Network that Azure reserves for RDMA. InfiniBand fails if the virtual network overlaps it (setup-infiniband page)."""


@check("azure-region", Level.ERROR, "use one of {regions}")
def region_offers(planned: Planned) -> Iterator[Broken]:
    """Microsoft's price list contains every machine type in the stack for the stack's region."""
    region = azure_spec(planned).region
    for machine in dict.fromkeys(size.name for _, size in asked_for(planned)):
        regions = region_facts().machines.get(machine)
        if regions is not None and region not in regions:
            yield Broken(
                path="cluster.platform.region",
                rule=f"{machine} is not available in {region} (price list of {region_facts().listed})",
                words={"regions": ", ".join(regions)},
            )


@check("azure-zone", Level.ERROR, "remove it, or use a region with zones, for example eastus")
def region_has_zones(planned: Planned) -> Iterator[Broken]:
    """A stack sets a zone only in a region with availability zones."""
    spec = azure_spec(planned)
    if spec.zone is not None and spec.region not in region_facts().regions.with_zones:
        yield Broken(path="cluster.platform.zone", rule=f"{spec.region} has no availability zones")


@check("azure-infiniband-network", Level.ERROR, "choose a different private range, for example one in 10.0.0.0/8")
def infiniband_network_free(planned: Planned) -> Iterator[Broken]:
    """The stack's networks do not overlap Azure's RDMA network."""
    if all(size.largest_fabric is None for _, size in asked_for(planned)):
        return
    networks = {"cluster.network.cidr": planned.plan.network}
    if _needs_services(planned.plan):
        networks["cluster.platform.services_cidr"] = azure_spec(planned).services_cidr
    for path, cidr in networks.items():
        if cidr.overlaps(_INFINIBAND_NETWORK):
            yield Broken(
                path=path,
                rule=f"{cidr} overlaps {_INFINIBAND_NETWORK}, which Azure uses for InfiniBand inside every machine",
            )


@check("azure-services-network", Level.ERROR, "choose a different private range, for example 10.78.0.0/24")
def services_do_not_overlap(planned: Planned) -> Iterator[Broken]:
    """The network for Bastion and NetApp Files does not overlap the cluster's network."""
    services = azure_spec(planned).services_cidr
    if _needs_services(planned.plan) and services.overlaps(planned.plan.network):
        yield Broken(
            path="cluster.platform.services_cidr",
            rule=f"{services} overlaps the cluster's network {planned.plan.network}, and Bastion and NetApp Files need "
            "separate subnets",
        )


@check("azure-tunnel", Level.INFO, "install the Azure CLI (az) where they run, and log in with `az login`")
def tunnel_reported(planned: Planned) -> Iterator[Broken]:
    """A note names the command-line tool that opens the tunnel to the head."""
    if planned.plan.access.via == "bastion":
        yield Broken(
            path="cluster.access.via",
            rule="`pulumi up` and `yard` connect to the head through a tunnel that `az network bastion tunnel` opens",
        )


def _needs_services(plan: ClusterPlan) -> bool:
    """Return whether the stack uses Bastion or NetApp Files."""
    return plan.access.via == "bastion" or plan.storage.kind == "azure_netapp"
