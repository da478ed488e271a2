"""A cluster's resource group, and the arguments that its resources share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi


@dataclass(frozen=True, kw_only=True)
class ResourceGroup:
    """The resource group of a cluster."""

    cluster: str
    name: pulumi.Output[str]
    id: pulumi.Output[str]
    region: str
    zone: str | None
    """Availability zone of machines and disks, or None if Azure chooses the zone."""

    @property
    def zones(self) -> list[str] | None:
        """Value of the `zones` argument for zonal resources."""
        return None if self.zone is None else [self.zone]

    @property
    def tags(self) -> dict[str, str]:
        """Tags for every resource that supports tags."""
        return {"trainyard-cluster": self.cluster}

    @property
    def common(self) -> dict[str, Any]:
        """Arguments for every resource with a region: the resource group, the region and the tags."""
        return {"resource_group_name": self.name, "location": self.region, "tags": self.tags}
