"""`yard rotate`: replaces one of a cluster's keys. No machine is replaced, and jobs continue."""

from __future__ import annotations

from types import MappingProxyType

from trainyard.errors import StackError
from yard.show import say, warn
from yard.stack.load import load_stack
from yard.stack.remote import Remote
from yard.stack.workspace import preview_replacement, replace_resources, urn_of, wait_for_pulumi

RESOURCES = MappingProxyType(
    {
        "admin": "admin-key",
        "cluster": "cluster-key",
        "user": "user-key",
        "munge": "munge-key",
        "database": "database-password",
    }
)
"""Mapping from each key to the end of its resource's name (components/keys.py)."""
_OF_SLURM = ("munge", "database")


def resource_of(remote: Remote, key: str) -> str:
    """Return the URN of the key's resource. Raises StackError if the cluster has no such key."""
    cluster, stack = remote.stack.cluster, remote.stack.name
    if key in _OF_SLURM and cluster.scheduler != "slurm":
        raise StackError(f"the cluster {cluster.name} has no Slurm, so no node uses a {key} key; nothing was changed")
    wait_for_pulumi(stack)
    urn = urn_of(stack, f"{cluster.name}-{RESOURCES[key]}")
    if urn is None:
        raise StackError(
            f"an older version of Trainyard created stack {stack}, which has no resource {cluster.name}-"
            f"{RESOURCES[key]}; nothing was changed. Fix: run `pulumi up -s {stack}` with this version"
        )
    return urn


def preview(remote: Remote, urn: str) -> int:
    """Print the changes, and return the exit code of `pulumi preview`."""
    return preview_replacement(remote.stack.name, [urn])


def rotate(remote: Remote, key: str, urn: str) -> int:
    """Replace the key, and return the exit code of `pulumi up`."""
    stack = remote.stack.name
    if code := replace_resources(stack, [urn]):
        warn(
            f"`pulumi up` ended with exit code {code}; its message is above. Until it succeeds, nodes can still accept "
            f"the former key. Fix: correct the cause if there was an error, then run `pulumi up -s {stack}`"
        )
        return code
    load_stack(stack, refresh=True)
    say(f"the key `{key}` of stack {stack} is rotated, and the nodes refuse the former one")
    return 0
