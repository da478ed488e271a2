"""What Google's networks refuse, or would carry badly."""

from __future__ import annotations

from collections.abc import Iterator

from components.checks.base import Planned
from components.errors import Problem
from components.platforms.gcp.layout import subnets_needed
from components.platforms.gcp.rules_machines import gcp_spec


def fabric_network_fits(planned: Planned) -> Iterator[Problem]:
    """The networks of the GPUs' cards fit into their range, which is apart from the primary network."""
    needed = subnets_needed(planned.plan)
    if not needed:
        return
    fabric, primary = gcp_spec(planned).fabric_cidr, planned.plan.network
    room = 2 ** (primary.prefixlen - fabric.prefixlen) if fabric.prefixlen <= primary.prefixlen else 0
    if room < needed:
        yield Problem(
            path="cluster.platform.fabric_cidr",
            rule=f"{fabric} has room for {room} networks of /{primary.prefixlen}, and the GPUs' cards need {needed}",
            fix="use a wider one, for example 10.192.0.0/10, or a narrower cluster.network.cidr",
        )
    if fabric.overlaps(primary):
        yield Problem(
            path="cluster.platform.fabric_cidr",
            rule=f"{fabric} overlaps cluster.network.cidr ({primary}), and a machine cannot be in both at one address",
            fix="choose another private range for one of them",
        )


def address_free(planned: Planned) -> Iterator[Problem]:
    """Google keeps the last address but one of every subnet for itself, besides the first two and the last."""
    kept = planned.plan.network[-2]
    for host in planned.plan.workers:
        if host.private_ip == kept:
            yield Problem(
                path=f"cluster.nodes.{host.group}.count",
                rule=f"{host.name} would get {kept}, which Google keeps for itself in {planned.plan.network}",
                fix=f"use {host.index} or fewer, or a wider cluster.network.cidr",
            )


def tunnel_told(planned: Planned) -> Iterator[Problem]:
    """A head without a public address is reached through a tunnel, which needs a command on the user's machine."""
    if planned.spec.access.via == "bastion":
        yield Problem(
            path="cluster.access.via",
            rule="`pulumi up` and `yard` reach the head through a tunnel that they open with "
            "`gcloud compute start-iap-tunnel`",
            fix="install the Google Cloud CLI (gcloud) where they run, log in with `gcloud auth login`, and have the "
            "role roles/iap.tunnelResourceAccessor",
        )
