"""New stacks on Google Cloud."""

from __future__ import annotations

from collections.abc import Sequence

from components.catalog import machines
from components.platforms.gcp.machine_facts import family_of
from components.platforms.gcp.places import zone_facts
from yard.init.created import created_section, with_access, with_limit
from yard.init.known import Known, Section, Starter

_ANY_PROJECT = "my-project-123456"
"""Placeholder project id, used until the answer is known."""


def places(machine: str) -> Sequence[str]:
    """Return the zones that offer a machine type, or all zones if no source lists them.

    Without a machine type, return the zones that offer any machine type with GPUs.
    """
    if machine in machines("gcp"):
        return family_of(machine).zones or zone_facts().names
    if machine:
        return zone_facts().names
    families = [family_of(name) for name, found in machines("gcp").items() if found.gpus]
    return sorted({zone for family in families for zone in family.zones})


def section(known: Known) -> Section:
    """Return the cluster section."""
    platform = {
        **known.base.get("platform", {}),
        "provider": "gcp",
        "project": known.get("project") or _ANY_PROJECT,
        "zone": known.get("region") or places(known.get("machine"))[0],
    }
    storage = {"kind": "head_nfs", "size_gib": 1024}
    # Compact placement is optional, and capacity for it is scarce.
    made = created_section(known, platform, placement=lambda machine: "none", storage=storage)
    return with_limit(known, with_access(known, made))


STARTER = Starter(
    keys=("project", "machine", "region", "count", "budget", "ssh_from"),
    section=section,
    place="zone",
    places=places,
    login=("gcloud auth login", "gcloud auth application-default login"),
    comments={"nodes.gpu": "With `placement: compact`, machines are close together, but capacity is scarce."},
)
