"""Checks and limits for the local platform."""

from __future__ import annotations

from components.platforms.facts import PlatformFacts
from components.platforms.local.rules import RULES

# A seed disk can have any size. The Pulumi state contains each machine's user-data, so a limit keeps the state small.
FACTS = PlatformFacts(user_data_limit=1 << 20, checks=RULES)
