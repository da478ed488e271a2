"""Compact placement of a node group."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_gcp import compute

from components.platforms.former_parent import moved_from


@dataclass(frozen=True, kw_only=True)
class PlacementArgs:
    """Arguments for a compact placement."""

    name: str
    """Name of the policy in Google Cloud."""
    region: str


class Placement(pulumi.ComponentResource):
    """A placement policy that keeps the machines of a node group close together."""

    policy: pulumi.Output[str]
    """Self link for the machines' `placement_policy`."""

    def __init__(self, name: str, args: PlacementArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:gcp:Placement", name, None, opts)
        self.policy = compute.ResourcePolicy(
            args.name,
            name=args.name,
            region=args.region,
            group_placement_policy=compute.ResourcePolicyGroupPlacementPolicyArgs(collocation="COLLOCATED"),
            opts=pulumi.ResourceOptions(parent=self, aliases=moved_from(opts)),
        ).self_link
        self.register_outputs({"policy": self.policy})
