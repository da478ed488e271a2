"""Checks for networks on Google Cloud and for access to the head."""

from __future__ import annotations

from collections.abc import Iterator

from components.plan.check import Broken, Level, Planned, check
from components.platforms.gcp.layout import subnets_needed
from components.platforms.gcp.rules.machines import gcp_spec


@check(
    "gcp-fabric-network",
    Level.ERROR,
    "use a wider one, for example 10.192.0.0/10, or a narrower cluster.network.cidr",
    "choose a different private range for one of them",
)
def fabric_network_fits(planned: Planned) -> Iterator[Broken]:
    """The networks for GPU interfaces fit into fabric_cidr, and fabric_cidr does not overlap the primary network."""
    needed = subnets_needed(planned.plan)
    if not needed:
        return
    fabric, primary = gcp_spec(planned).fabric_cidr, planned.plan.network
    room = 2 ** (primary.prefixlen - fabric.prefixlen) if fabric.prefixlen <= primary.prefixlen else 0
    if room < needed:
        yield Broken(
            path="cluster.platform.fabric_cidr",
            rule=f"{fabric} has room for {room} networks of /{primary.prefixlen}, and GPU interfaces need {needed}",
        )
    if fabric.overlaps(primary):
        yield Broken(
            path="cluster.platform.fabric_cidr",
            rule=f"{fabric} overlaps cluster.network.cidr ({primary}), but a machine needs separate networks",
            fix=1,
        )


@check("gcp-address-kept", Level.ERROR, "use {index} or fewer, or a wider cluster.network.cidr")
def address_free(planned: Planned) -> Iterator[Broken]:
    """No host has the second-to-last address in the subnet, because Google reserves it."""
    reserved = planned.plan.network[-2]
    for host in planned.plan.workers:
        if host.private_ip == reserved:
            yield Broken(
                path=f"cluster.nodes.{host.group}.count",
                rule=f"{host.name} would get {reserved}, which Google reserves in {planned.plan.network}",
                words={"index": host.index},
            )


@check(
    "gcp-tunnel",
    Level.INFO,
    "install the Google Cloud CLI (gcloud) where they run, log in with `gcloud auth login`, and have the role "
    "roles/iap.tunnelResourceAccessor",
)
def tunnel_reported(planned: Planned) -> Iterator[Broken]:
    """A note names the command-line tool that opens the tunnel to the head."""
    if planned.plan.access.via == "bastion":
        yield Broken(
            path="cluster.access.via",
            rule="`pulumi up` and `yard` connect to the head through a tunnel that `gcloud compute start-iap-tunnel` "
            "opens",
        )
