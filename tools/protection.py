"""What of a stack is protected from deletion: asked before anything of it is deleted, not when its turn comes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from tools.environment import ROOT, ToolError

EXCLUDE = "--exclude-protected"
"""Pulumi's own option: delete all but what is protected, and what that stands on."""


def refuse_protected(stack: str, environment: Mapping[str, str]) -> None:
    """Raise ToolError, naming it and the way to mean it, for a stack that holds something protected."""
    done = subprocess.run(
        ["pulumi", "stack", "export", "--non-interactive", "-s", stack],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise ToolError(f"stack '{stack}': its state cannot be read: {done.stderr.strip()}")
    found = protected(json.loads(done.stdout))
    if found:
        raise ToolError(
            f"stack '{stack}' holds data that is protected: {', '.join(found)}. Nothing was deleted. Fix: to keep the "
            f"data and delete the rest, add {EXCLUDE}; to delete the data as well, set "
            f"cluster.platform.protect_storage to false in stacks/Pulumi.{stack}.yaml, run `up`, then `destroy`"
        )


def protected(state: Mapping[str, Any]) -> Sequence[str]:
    """Return name and type of each protected resource of an exported state."""
    resources = (state.get("deployment") or {}).get("resources") or []
    return [
        f"{resource['urn'].rpartition('::')[2]} ({resource['type']})"
        for resource in resources
        if resource.get("protect")
    ]
