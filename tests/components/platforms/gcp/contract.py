"""Contract for the GCP platform."""

from __future__ import annotations

from typing import Any

from tests.components.platforms.contract import Contract
from tests.components.platforms.gcp.conftest import answer, tell
from tests.components.platforms.recording import Built

_KIND = "compute/instance:Instance"


def _addresses(built: Built) -> dict[str, str]:
    return {name: inputs["networkInterfaces"][0]["networkIp"] for name, inputs in built.all(_KIND).items()}


def _user_data(built: Built) -> dict[str, str]:
    return {name: inputs["metadata"]["user-data"] for name, inputs in built.all(_KIND).items()}


def _ssh_from(built: Built) -> set[str]:
    rules = [rule for rule in built.all("compute/firewall:Firewall").values() if any(map(_reaches, rule["allows"]))]
    sources = {source for rule in rules for source in rule.get("sourceRanges", ["0.0.0.0/0"])}
    return sources - {str(built.plan.network)}


def _reaches(allowed: dict[str, Any]) -> bool:
    return allowed["protocol"] in {"all", "tcp"} and ("22" in allowed.get("ports", ["22"]))


CONTRACT = Contract(
    stack="gcp-a2", answer=answer, tell=tell, addresses=_addresses, user_data=_user_data, ssh_from=_ssh_from
)
