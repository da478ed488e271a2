"""What Azure refuses about networks, and how people and the head get in."""

from __future__ import annotations

from collections.abc import Iterator

from components.checks.base import Planned
from components.errors import Problem
from components.platforms.azure.layout import INFINIBAND_NETWORK, needs_services
from components.platforms.azure.rules_machines import asked_for, azure_spec


def infiniband_has_its_network(planned: Planned) -> Iterator[Problem]:
    """Azure's RDMA network has addresses of its own, which the virtual network must leave alone."""
    if all(size.largest_fabric is None for _, size in asked_for(planned)):
        return
    places = {"cluster.network.cidr": planned.plan.network}
    if needs_services(planned.spec):
        places["cluster.platform.services_cidr"] = azure_spec(planned).services_cidr
    for path, cidr in places.items():
        if cidr.overlaps(INFINIBAND_NETWORK):
            yield Problem(
                path=path,
                rule=f"{cidr} overlaps {INFINIBAND_NETWORK}, which Azure's InfiniBand uses inside every machine",
                fix="choose another private range, for example one in 10.0.0.0/8",
            )


def services_stand_beside(planned: Planned) -> Iterator[Problem]:
    """What stands in subnets of its own has addresses beside the cluster's."""
    services = azure_spec(planned).services_cidr
    if needs_services(planned.spec) and services.overlaps(planned.plan.network):
        yield Problem(
            path="cluster.platform.services_cidr",
            rule=f"{services} overlaps the cluster's own {planned.plan.network}, and Bastion and NetApp Files need "
            "subnets to themselves",
            fix="choose a private range beside it, for example 10.78.0.0/24",
        )


def tunnel_told(planned: Planned) -> Iterator[Problem]:
    """A head without a public address is reached through a tunnel, which needs a command on the user's machine."""
    if planned.spec.access.via == "bastion":
        yield Problem(
            path="cluster.access.via",
            rule="`pulumi up` and `yard` reach the head through a tunnel that they open with "
            "`az network bastion tunnel`",
            fix="install the Azure CLI (az) where they run, and log in with `az login`",
        )
