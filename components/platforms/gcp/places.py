"""Google Cloud zones."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import Field

from components.platforms.listing import Listing, read_listing
from components.stackfile.explain import nearest
from yard.contract.errors import RuleError


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


def known_zone(name: str) -> str:
    """Return `name` if it is a Google Cloud zone. Raises RuleError otherwise."""
    facts = zone_facts()
    if name in facts.names:
        return name
    region, _, _ = name.rpartition("-")
    if letters := facts.zones.get(region):
        fix = f"use one of {', '.join(f'{region}-{letter}' for letter in letters)}"
    else:
        meant = nearest(name, facts.names)
        fix = f"write {meant}" if meant else "use a name that `gcloud compute zones list` prints"
    raise RuleError(f"must be a Google Cloud zone (list of {facts.listed})", fix)
