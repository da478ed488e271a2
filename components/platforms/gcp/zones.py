"""Google's zones. Facts of components/catalog/gcp_zones.yaml."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from components.errors import CatalogError, RuleError
from components.explain import nearest

_Date = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]
_FILE = Path(__file__).parents[2] / "catalog" / "gcp_zones.yaml"


class ZoneFacts(BaseModel):
    """Letters of the zones of each region."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    listed: _Date
    """The date of the source's own data."""
    dated: _Date
    """The date on which the source was read."""
    zones: dict[str, Annotated[str, Field(pattern=r"^[a-z]+$")]]

    @property
    def names(self) -> tuple[str, ...]:
        """All zones."""
        return tuple(f"{region}-{letter}" for region, letters in self.zones.items() for letter in letters)


@cache
def zone_facts() -> ZoneFacts:
    """Return the recorded zones. Raises CatalogError if the file contradicts its model."""
    try:
        return ZoneFacts.model_validate(yaml.safe_load(_FILE.read_text()))
    except ValidationError as error:
        raise CatalogError(f"components/catalog/{_FILE.name}: {error}") from error


def known_zone(name: str) -> str:
    """Return the name of a zone. Raises RuleError for a zone that Google does not have."""
    facts = zone_facts()
    if name in facts.names:
        return name
    region, _, _ = name.rpartition("-")
    if letters := facts.zones.get(region):
        fix = f"use one of {', '.join(f'{region}-{letter}' for letter in letters)}"
    else:
        meant = nearest(name, facts.names)
        fix = f"write {meant}" if meant else "use a name that `gcloud compute zones list` prints"
    raise RuleError(f"must be a zone of Google's cloud (list of {facts.listed})", fix)
