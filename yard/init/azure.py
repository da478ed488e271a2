"""New stacks on Azure."""

from __future__ import annotations

from collections.abc import Sequence

from components.catalog import machines
from components.platforms.azure.machine_facts import sizes
from components.platforms.azure.places import region_facts
from yard.init.created import created_section, with_access, with_limit
from yard.init.known import Known, Section, Starter


def places(machine: str) -> Sequence[str]:
    """Return the regions with a price for a machine type, or for any machine type with GPUs."""
    facts = region_facts()
    if machine in facts.machines:
        return facts.machines[machine]
    if machine:
        return facts.regions.names
    gpus = {name for name, found in machines("azure").items() if found.gpus}
    return sorted({region for name in gpus & facts.machines.keys() for region in facts.machines[name]})


def placement(machine: str) -> str:
    """Return same_fabric for machines with InfiniBand, because other placements prevent the use of InfiniBand."""
    size = sizes().get(machine)
    return "none" if size is None or size.largest_fabric is None else "same_fabric"


def section(known: Known) -> Section:
    """Return the cluster section."""
    region = known.get("region") or places(known.get("machine"))[0]
    platform = {**known.base.get("platform", {}), "provider": "azure", "region": region}
    storage = {"kind": "head_nfs", "size_gib": 1024}
    made = created_section(known, platform, placement=placement, storage=storage)
    return with_limit(known, with_access(known, made))


STARTER = Starter(
    keys=("machine", "region", "count", "budget", "ssh_from"),
    section=section,
    place="region",
    places=places,
    login=("az login",),
    comments={"platform": "Without `subscription`, ARM_SUBSCRIPTION_ID or the subscription of `az login` is used."},
)
