"""Checks and limits for existing hosts."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from components.plan.check import checks_in
from components.plan.plan import ClusterPlan
from components.platforms.hosts import rules
from components.platforms.hosts.spec import HostsSpec
from components.platforms.registry import PlatformFacts

_SOCKET = "/run/trainyard-power.sock"
"""The socket in trainyard-power.socket."""


def _power_channel(plan: ClusterPlan) -> Mapping[str, str] | None:
    command = plan.platform_spec(HostsSpec).power_command
    return {"platform": "hosts", "address": _SOCKET, "command": shlex.join(command)} if command else None


# SSH can transfer scripts of any size. The limit keeps Pulumi's state small, which also contains the scripts.
FACTS = PlatformFacts(
    baking="the platform uses existing hosts, and their owners install the operating system. Fix: run `pulumi up`, "
    "which installs the packages on the hosts",
    user_data_limit=1 << 20,
    checks=checks_in(rules),
    power_channel=_power_channel,
)
