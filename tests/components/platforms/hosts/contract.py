"""Contract for the hosts platform."""

from __future__ import annotations

import re
from typing import Any

import pulumi
import yaml

from components.platforms.hosts import connect
from tests.components.platforms.contract import Contract
from tests.components.platforms.recording import Built, stack_text


def _answer(args: pulumi.runtime.MockResourceArgs) -> tuple[str, dict[str, Any]]:
    return f"id-{args.name}", {"stdout": f"said by {args.name}", **args.inputs}


def _tell(args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
    raise AssertionError(f"the hosts platform must not invoke functions, but invoked {args.token}")


def _scripts(built: Built) -> dict[str, str]:
    """Return the script that installs the files of each host. This script takes the place of user-data on other
    platforms."""
    commands = built.all("remote:Command")
    scripts = {name: str(inputs["stdin"]) for name, inputs in commands.items() if name.endswith("-files")}
    return {
        next(host.name for host in built.plan.hosts if f"-{host.name}-" in name): text for name, text in scripts.items()
    }


def _addresses(built: Built) -> dict[str, str]:
    """Return the address of each host from its script."""
    found = {
        name: re.search(r"^TRAINYARD_PRIVATE_IP=(\S+)$", text, re.MULTILINE) for name, text in _scripts(built).items()
    }
    return {name: match[1] if match else "" for name, match in found.items()}


_STACK = "baremetal-h100"
_ENTRIES = yaml.safe_load(stack_text(_STACK))["config"]["trainyard:cluster"]["platform"]["hosts"]

CONTRACT = Contract(
    stack=_STACK,
    answer=_answer,
    tell=_tell,
    addresses=_addresses,
    user_data=_scripts,
    # The stack does not change firewalls on existing hosts.
    ssh_from=lambda built: set(),
    smaller={"nodes__gpu__hosts": ["h100-1"], "platform__hosts": _ENTRIES[:2]},
    larger={"nodes__gpu__hosts": ["h100-1", "h100-2"]},
    prepare=lambda patch: patch.setattr(connect, "_key", lambda file, name: "the owner's key"),
)
