"""Replaces machines with `pulumi up`."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from dataclasses import dataclass

from trainyard.errors import StackError
from trainyard.machines import HOST_INPUTS
from yard.show import say
from yard.stack import pulumi
from yard.stack.pulumi import StackInUse
from yard.stack.workspace import SHOW, Workspace

_POLL_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine in the stack's state. `created` is its creation time, which changes after a replacement."""

    urn: str
    created: str


def machines(stack: str, names: Collection[str]) -> dict[str, Machine]:
    """Return a mapping from host name to machine. Hosts without a machine in the stack's state are omitted."""
    done = pulumi.run(["stack", "export", "--stack", stack], pulumi.environment(required=True))
    if done.returncode:
        raise StackError(f"`pulumi stack export` of {stack} failed: {done.stderr.strip()}")
    resources = json.loads(done.stdout)["deployment"].get("resources", ())
    # A machine whose deletion failed remains in the state with the same URN.
    found = {
        entry["inputs"][HOST_INPUTS[entry["type"]]]: Machine(urn=entry["urn"], created=str(entry.get("created", "")))
        for entry in resources
        if entry["type"] in HOST_INPUTS and not entry.get("delete")
    }
    return {name: found[name] for name in names if name in found}


def wait_for_pulumi(stack: str) -> None:
    """Wait until no pulumi process uses the stack, and remove the lock of a process that has ended.

    If `yard roll` is killed, the `pulumi up` that it started keeps running.
    """
    shown = ""
    while _has_stack_file(stack):
        try:
            Workspace(stack).clear_lock()
            return
        except StackInUse as error:
            if not shown:
                say(f"waiting: {error}")
            shown = str(error)
        time.sleep(_POLL_SECONDS)


def replace_machines(stack: str, urns: Collection[str]) -> int:
    """Replace the machines that have these URNs, and return the exit code of `pulumi up`.

    Only new machines get this checkout's user-data and image.
    """
    arguments = [*SHOW, "--yes", "--skip-preview", *(word for urn in urns for word in ("--replace", urn))]
    if not _has_stack_file(stack):
        return pulumi.run_pulumi(["up", "-s", stack, *arguments], pulumi.environment(required=True))
    return Workspace(stack).operate("up", arguments)


def _has_stack_file(stack: str) -> bool:
    # There are no stack files for qualified names (ORG/PROJECT/STACK).
    return "/" not in stack
