"""Checks on a whole plan: what only the platform, or the rendered result, can tell."""

from __future__ import annotations

from collections.abc import Iterator

from components.checks.base import Planned
from components.cloud_init import AccessKeys, render_user_data
from components.errors import Problem
from components.platforms import platform_class, platform_problems

_KEY = f"ssh-ed25519 {'A' * 68} cluster@{'a' * 16}"
"""As long as a real public key: the real ones are made later."""


def platform_fits(planned: Planned) -> Iterator[Problem]:
    """The platform can hold the plan: whatever it alone knows."""
    yield from platform_problems(planned.spec, planned.plan)


def user_data_fits(planned: Planned) -> Iterator[Problem]:
    """The platform accepts user-data as long as ours. One host of each role and group stands for the others."""
    limit = platform_class(planned.plan.provider).user_data_limit
    plan = planned.plan
    for host in (plan.head, *(plan.group(name)[0] for name in plan.groups)):
        size = len(render_user_data(plan, host, AccessKeys(_KEY, _KEY)).encode())
        if size > limit:
            yield Problem(
                path="cluster.platform",
                rule=f"user-data of {host.name} has {size} bytes, and {plan.provider} accepts {limit}",
                fix="ship less under cloud-init/files, or fetch it in a bootstrap stage",
            )
