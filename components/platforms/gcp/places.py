"""Google Cloud zones."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Annotated

from pydantic import Field, ValidationInfo

from components.catalog import machines
from components.platforms.gcp.machine_facts import family_of
from components.platforms.listing import Listing, read_listing
from components.spec.explain import nearest
from components.spec.model import used_machines
from trainyard.errors import RuleError


class ZoneFacts(Listing):
    """Zone letters by region: "abc" for zones a, b and c."""

    zones: dict[str, Annotated[str, Field(pattern=r"^[a-z]+$")]]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all zones."""
        return tuple(f"{region}-{letter}" for region, letters in self.zones.items() for letter in letters)


@cache
def zone_facts() -> ZoneFacts:
    """Return the zones in the catalog. Raises CatalogError if the file does not match its model."""
    return read_listing("gcp_zones.yaml", ZoneFacts)


def zones_with(names: Iterable[str]) -> tuple[str, ...]:
    """Return the zones that offer all of the machine types. Unknown types, and types without a list of zones, are
    ignored.

    If no zone offers all of them, return all zones.
    """
    lists = [family_of(name).zones for name in names if name in machines("gcp")]
    found = [zone for zone in zone_facts().names if all(zone in zones for zones in lists if zones)]
    return tuple(found) or zone_facts().names


def known_zone(name: str, info: ValidationInfo) -> str:
    """Return `name` if it is a Google Cloud zone. Otherwise, raise RuleError and suggest a zone with the stack's
    machine types."""
    facts = zone_facts()
    if name in facts.names:
        return name
    usable = zones_with(used_machines(info))
    region, _, _ = name.rpartition("-")
    if near := [zone for zone in usable if zone.rpartition("-")[0] == region]:
        fix = f"use one of {', '.join(near)}"
    elif meant := nearest(name, usable):
        fix = f"write {meant}"
    elif len(usable) < len(facts.names):
        fix = f"use one of {', '.join(usable)}"
    else:
        fix = "use a name that `gcloud compute zones list` prints"
    raise RuleError(f"must be a Google Cloud zone (list of {facts.listed})", fix)
