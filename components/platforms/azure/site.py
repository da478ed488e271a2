"""Where everything of one cluster is made: its resource group, and what every resource of it says alike."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi


@dataclass(frozen=True, kw_only=True)
class Site:
    """Passed to every builder. `zone` is None where Azure chooses."""

    cluster: str
    group: pulumi.Output[str]
    """Name of the resource group."""
    group_id: pulumi.Output[str]
    region: str
    zone: str | None

    @property
    def zones(self) -> list[str] | None:
        """The zone as Azure's arguments want it."""
        return None if self.zone is None else [self.zone]

    @property
    def tags(self) -> dict[str, str]:
        """Tags of every resource that takes them."""
        return {"trainyard-cluster": self.cluster}
