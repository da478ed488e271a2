"""The record of an unfinished roll, so that an interrupted `yard roll` can continue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trainyard.errors import StackError
from trainyard.outputs import Cluster


@dataclass(frozen=True, kw_only=True)
class Roll:
    """A roll of one group. `keys` contains the SSH host key of each node before the roll.

    A node counts as replaced when its host key in the stack's outputs has changed, because each new machine creates its
    own key. The outputs change only after `pulumi up` has checked the new nodes. `replacing` contains the nodes of an
    unfinished `pulumi up`, and the time at which the machine of each node was created.
    """

    group: str
    keys: Mapping[str, str]
    replacing: Mapping[str, str] = field(default_factory=dict)

    def pending(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the nodes that have not been replaced, in the order of the outputs."""
        return tuple(node.name for node in cluster.nodes if self.keys.get(node.name) == node.host_key)


def new_roll(cluster: Cluster, group: str) -> Roll:
    """Return the record of a roll that has not started."""
    return Roll(group=group, keys={node.name: node.host_key for node in cluster.nodes if node.group == group})


def read_roll(file: Path) -> Roll | None:
    """Return the unfinished roll of a stack, or None. Raises StackError if the record cannot be read."""
    try:
        found = json.loads(file.read_text())
        return Roll(group=found["group"], keys=dict(found["keys"]), replacing=dict(found["replacing"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        raise StackError(
            f"the record of an unfinished roll, {file}, cannot be read. Fix: remove it, and check with `yard nodes` "
            "that no node is drained with the reason TY:roll"
        ) from None


def write_roll(file: Path, roll: Roll) -> None:
    """Store the record atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(asdict(roll)))
    new.replace(file)
