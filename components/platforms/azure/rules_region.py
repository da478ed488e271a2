"""Rules about the region and the zone of an Azure stack."""

from __future__ import annotations

from collections.abc import Iterator

from components.checks.base import Planned
from components.errors import Problem
from components.platforms.azure.regions import region_facts, sold_in
from components.platforms.azure.rules_machines import asked_for, azure_spec


def region_sells(planned: Planned) -> Iterator[Problem]:
    """Microsoft's price list has every machine type of the stack in the stack's region."""
    region = azure_spec(planned).region
    for machine in dict.fromkeys(size.name for _, size in asked_for(planned)):
        regions = sold_in(machine)
        if regions is not None and region not in regions:
            yield Problem(
                path="cluster.platform.region",
                rule=f"{machine} is not sold in {region} (price list of {region_facts().listed})",
                fix=f"use one of {', '.join(regions)}",
            )


def region_has_zones(planned: Planned) -> Iterator[Problem]:
    """A stack names a zone only in a region with availability zones."""
    spec = azure_spec(planned)
    if spec.zone is not None and spec.region not in region_facts().regions.with_zones:
        yield Problem(
            path="cluster.platform.zone",
            rule=f"{spec.region} has no availability zones",
            fix="remove it, or use a region with zones, for example eastus",
        )
