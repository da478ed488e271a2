"""Fact: the base class of all rows in the catalog."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Fact(BaseModel):
    """A row in the catalog. `source` is the publication, and `dated` is the ISO date on which it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    dated: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
