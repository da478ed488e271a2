"""Injected faults, from the file `faults.yaml` in the stack's folder. docs/offline.md describes the file.

The file is read before every operation. The number of matching operations is stored on disk, because `skip` and `times`
apply to all processes and runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

import yaml

from offline.cloud.world import World, write_atomically
from offline.resources import ResourceError

FILE = "faults.yaml"
COUNTS = "faults-met.json"
"""Number of matching operations by fault."""
_AT = {
    "quota": "create",
    "stockout": "create",
    "throttled": "create",
    "timed-out": "create",
    "slow": "create",
    "evicted": "read",
    "deallocated": "read",
    "deleted": "read",
    "drifted": "read",
    "unpublished": "attributes",
    "failed": "command",
}
_ONCE = frozenset({"evicted", "deallocated", "deleted", "drifted"})


@dataclass(frozen=True)
class Fault:
    """An entry in the file."""

    fault: str
    """A key in _AT."""
    of: str = "*"
    """Pattern for resource types ("*:VirtualMachine")."""
    name: str = "*"
    """Pattern for Pulumi names ("opt-gpu-*")."""
    at: str = ""
    """create, read, update, delete, attributes, console or command; the default depends on the fault."""
    skip: int = 0
    """Number of matching operations that succeed before the first failure."""
    times: int = 0
    """Maximum number of failures, or 0 for no limit."""
    seconds: float = 1.0
    """Duration of `slow`."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Values that `drifted` sets, by property path."""

    @property
    def key(self) -> str:
        """Key under which matching operations are counted. The count of an edited fault starts at zero."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def strikes(world: World, operation: str, token: str, name: str) -> list[Fault]:
    """Count this operation and return its faults. Raises ResourceError for an invalid file."""
    met = [fault for fault in _read(world) if _matches(fault, operation, token, name)]
    if not met:
        return []
    with world.locked():
        counts = _counts(world)
        for fault in met:
            counts[fault.key] = counts.get(fault.key, 0) + 1
        write_atomically(world.folder / COUNTS, counts)
    return [fault for fault in met if _now(fault, counts[fault.key])]


def _now(fault: Fault, met: int) -> bool:
    times = fault.times or (1 if fault.fault in _ONCE else 0)
    return met > fault.skip and (times == 0 or met <= fault.skip + times)


def _matches(fault: Fault, operation: str, token: str, name: str) -> bool:
    at = fault.at or _AT[fault.fault]
    return at == operation and fnmatchcase(token, fault.of) and fnmatchcase(name, fault.name)


def _counts(world: World) -> dict[str, int]:
    try:
        counts: dict[str, int] = json.loads((world.folder / COUNTS).read_text())
    except FileNotFoundError:
        return {}
    return counts


def _read(world: World) -> list[Fault]:
    file = world.folder / FILE
    try:
        content = yaml.safe_load(file.read_text())
    except FileNotFoundError:
        return []
    except yaml.YAMLError as error:
        raise ResourceError(f"{file}: not YAML ({error}). Fix: see docs/offline.md") from error
    problems = list(_problems(content))
    if problems:
        raise ResourceError(f"{file}: {'; '.join(problems)}. Fix: see docs/offline.md")
    return [Fault(**entry) for entry in content or ()]


def _problems(content: object) -> Iterator[str]:
    if content is None:
        return
    if not isinstance(content, list):
        yield "must be a list of faults"
        return
    known = {item.name for item in fields(Fault)}
    for number, entry in enumerate(content, 1):
        if not isinstance(entry, dict) or entry.get("fault") not in _AT:
            yield f"entry {number}: `fault` must be one of {', '.join(_AT)}"
        elif set(entry) - known:
            yield f"entry {number}: unknown {', '.join(map(str, sorted(set(entry) - known)))}"
