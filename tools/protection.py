"""Check for protected resources before `destroy` deletes anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainyard.errors import StackError
from yard.stack import pulumi

EXCLUDE = "--exclude-protected"
"""Pulumi option that excludes protected resources and their dependencies from `destroy`."""


def refuse_protected(stack: str, environment: Mapping[str, str]) -> None:
    """Raise StackError if the stack has protected resources. The message lists them and explains how to delete them."""
    done = pulumi.run(["stack", "export", "--non-interactive", "-s", stack], environment)
    if done.returncode:
        raise StackError(f"stack '{stack}': the state cannot be read: {done.stderr.strip()}")
    found = protected(json.loads(done.stdout))
    if found:
        raise StackError(
            f"stack '{stack}' has protected data: {', '.join(found)}. Nothing was deleted. Fix: to keep the "
            f"data and delete the rest, add {EXCLUDE}; to delete the data as well, set "
            f"cluster.platform.protect_storage to false in stacks/Pulumi.{stack}.yaml, run `up`, then `destroy`"
        )


def protected(state: Mapping[str, Any]) -> Sequence[str]:
    """Return the name and type of each protected resource in an exported state."""
    resources = (state.get("deployment") or {}).get("resources") or []
    return [
        f"{resource['urn'].rpartition('::')[2]} ({resource['type']})"
        for resource in resources
        if resource.get("protect")
    ]
