"""Let go of a host that is gone for good: the stack forgets that it must be given back, and nothing asks for it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping

from jobs.errors import StackError
from jobs.stack import CHECKOUT, pulumi_environment

_SECONDS = 120
_SUFFIX = "-lease"
"""Ends the name of the one resource of a host whose deletion has to reach it."""


def forget_host(stack: str, host: str) -> str:
    """Remove the host's lease from the stack's state, and return its URN. Raises StackError when there is none."""
    environment = pulumi_environment()
    state = json.loads(_pulumi(environment, "stack", "export", "-s", stack))
    leases = [
        resource["urn"]
        for resource in state.get("deployment", {}).get("resources", ())
        if resource["urn"].endswith(_SUFFIX)
    ]
    found = [urn for urn in leases if urn.endswith(f"-{host}{_SUFFIX}")]
    # A host's name may end as another's does: the shortest name of a resource is the one.
    if not found:
        known = ", ".join(urn.rpartition("::")[2].removesuffix(_SUFFIX) for urn in leases) or "none"
        raise StackError(f"stack '{stack}' holds no host {host}; it holds {known}")
    urn: str = min(found, key=len)
    _pulumi(environment, "state", "delete", urn, "-s", stack, "--yes", "--non-interactive")
    return urn


def _pulumi(environment: Mapping[str, str], *words: str) -> str:
    try:
        done = subprocess.run(
            ["pulumi", *words], env=environment, cwd=CHECKOUT, capture_output=True, text=True, timeout=_SECONDS,
            check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except FileNotFoundError:
        raise StackError("pulumi is not on PATH; run `make setup`, or install the Pulumi CLI") from None
    except subprocess.TimeoutExpired:
        raise StackError(f"pulumi did not answer within {_SECONDS} s; is its backend reachable?") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise StackError(
            f"pulumi {words[0]} {words[1]} failed: {said[-500:]}. Fix: if others depend on it, take it out of the "
            "stack file and run `pulumi up` first; then forget it"
        )
    return done.stdout
