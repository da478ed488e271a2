"""Plans for edited stack files, without the checks that `read_stack` runs."""

from __future__ import annotations

from typing import Any

import yaml

from components.catalog import images, machines
from components.node.bake import baked_name
from components.plan.check import Planned
from components.plan.plan import ClusterPlan, plan_cluster
from components.platforms.registry import Baking, platform_facts
from components.stackfile.read import cluster_spec
from tests.components.platforms.recording import stack_text

Edits = dict[str, Any]
"""Edits to a stack (see `stack_text`)."""


def planned(stack: str, edits: Edits) -> Planned:
    """Return the plan for an edited stack. The checks do not run, so the plan can be invalid."""
    document = yaml.safe_load(stack_text(stack, **edits))
    spec = cluster_spec(document["config"]["trainyard:cluster"])
    return Planned(plan=plan_cluster(spec, machines(spec.platform.provider), images()[spec.platform.image]))


def current_name(plan: ClusterPlan) -> str:
    """Return the name of the image that `yard bake` builds for a plan."""
    baking = platform_facts(plan.provider).baking
    assert isinstance(baking, Baking)
    return baked_name(plan, baking.base(plan))
