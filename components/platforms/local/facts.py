"""Checks and limits for the local platform."""

from __future__ import annotations

from components.plan.check import checks_in
from components.plan.plan import ClusterPlan
from components.platforms.local import power, rules
from components.platforms.local.image_build import Recipe, image_id
from components.platforms.local.spec import LocalSpec
from components.platforms.registry import Baking, PlatformFacts
from components.platforms.shared_rules import image_rules


def _bake(plan: ClusterPlan, name: str) -> str:
    from components.platforms.local.bake import bake_here  # noqa: PLC0415  (each preview imports this module)

    return bake_here(plan, name)


# A seed disk can have any size, but Pulumi's state also contains the user-data. The limit keeps the state small.
FACTS = PlatformFacts(
    baking=Baking(base=lambda plan: image_id(Recipe(suite=plan.platform_spec(LocalSpec).suite)), here=_bake),
    user_data_limit=1 << 20,
    checks=(*checks_in(rules), *image_rules("local")),
    power_channel=lambda _: {"platform": "local", "address": power.ADDRESS, "port": str(power.PORT)},
)
