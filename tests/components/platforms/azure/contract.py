"""Contract for the Azure platform."""

from __future__ import annotations

import base64

from tests.components.platforms.azure.conftest import answer, tell
from tests.components.platforms.contract import Contract
from tests.components.platforms.recording import Built


def _addresses(built: Built) -> dict[str, str]:
    cards = built.all("network:NetworkInterface")
    return {
        name.removesuffix("-nic"): inputs["ipConfigurations"][0]["privateIPAddress"] for name, inputs in cards.items()
    }


def _user_data(built: Built) -> dict[str, str]:
    machines = built.all("compute:VirtualMachine")
    return {name: base64.b64decode(inputs["osProfile"]["customData"]).decode() for name, inputs in machines.items()}


def _ssh_from(built: Built) -> set[str]:
    rules = [rule for group in built.all("network:NetworkSecurityGroup").values() for rule in group["securityRules"]]
    allowed = [rule for rule in rules if rule["access"] == "Allow" and rule["direction"] == "Inbound"]
    reach = [rule for rule in allowed if rule.get("destinationPortRange") in {"22", "*"}]
    sources = [
        source
        for rule in reach
        for source in (*rule.get("sourceAddressPrefixes", ()), rule.get("sourceAddressPrefix"))
        if source
    ]
    return {source for source in sources if source != str(built.plan.network)}


CONTRACT = Contract(
    stack="azure-a100", answer=answer, tell=tell, addresses=_addresses, user_data=_user_data, ssh_from=_ssh_from
)
