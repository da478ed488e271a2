"""Checks and limits for existing hosts."""

from __future__ import annotations

from components.plan.check import checks_in
from components.platforms.hosts import rules
from components.platforms.registry import PlatformFacts

# SSH can transfer scripts of any size. The limit keeps Pulumi's state small, which also contains the scripts.
FACTS = PlatformFacts(
    baking="the platform uses existing hosts, and their owners install the operating system. Fix: run `pulumi up`, "
    "which installs the packages on the hosts",
    user_data_limit=1 << 20,
    checks=checks_in(rules),
)
