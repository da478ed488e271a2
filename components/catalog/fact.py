"""Fact: the base of every row of the catalog."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class Fact(BaseModel):
    """A row of the catalog. `source` is where the fact was published, `dated` when it was read (ISO date)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    source: str
    dated: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
