"""Replaces machines with `pulumi up`."""

from __future__ import annotations

import json
from collections.abc import Collection

from yard.contract.machines import MACHINE_TYPES, ROLL
from yard.errors import StackError
from yard.stack import pulumi


def machine_urns(stack: str, names: Collection[str]) -> dict[str, str]:
    """Return the URN of each host's machine by host name. Raises StackError if a host has no machine."""
    done = pulumi.run(["stack", "export", "--stack", stack], pulumi.environment(required=True))
    if done.returncode:
        raise StackError(f"`pulumi stack export` of {stack} failed: {done.stderr.strip()}")
    resources = json.loads(done.stdout)["deployment"].get("resources", ())
    # A machine whose deletion has failed remains in the state with the same URN.
    machines = [entry["urn"] for entry in resources if entry["type"] in MACHINE_TYPES and not entry.get("delete")]
    urns = {name: urn for name in names for urn in machines if f"-{urn.rpartition('::')[2]}".endswith(f"-{name}")}
    if missing := sorted(set(names) - urns.keys()):
        raise StackError(
            f"stack {stack} has no machine for {', '.join(missing)}. Fix: run `pulumi refresh` and `pulumi up`"
        )
    return {name: urns[name] for name in names}


def replace_machines(stack: str, names: Collection[str], urns: Collection[str]) -> int:
    """Run `pulumi up` and replace the machines with these URNs. Return its exit code.

    Only the machines in `names` get the user-data and image from this checkout.
    """
    replace = [word for urn in urns for word in ("--replace", urn)]
    variables = pulumi.environment(required=True) | {ROLL: ",".join(names)}
    return pulumi.run_pulumi(["up", "--stack", stack, "--yes", "--skip-preview", *replace], variables)
