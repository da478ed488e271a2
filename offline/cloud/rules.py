"""Facts that the SDKs lack: resource IDs, and how a property's change affects the resource."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from offline.values import Properties, Value, changes
from trainyard.strict_yaml import load_own

_FOLDER = Path(__file__).with_name("rules")
_INDEX = re.compile(r"\[[^\]]*\]")
_HOLE = re.compile(r"\{(\w+)\}")
_PLACES = frozenset({"project", "region", "zone", "location"})
_EFFECTS = ("replace", "shrink", "refuse", "stop", "start")


@dataclass(frozen=True)
class Rule:
    """Rules for a resource type. Property paths contain no list indices, and also match the paths below them."""

    path: str = ""
    """Pattern for the type's IDs, or "" if it is unknown."""
    replace: frozenset[str] = frozenset()
    """Properties whose change replaces the resource. With the suffix ".#", only added or removed elements count."""
    shrink: frozenset[str] = frozenset()
    """Top-level properties (numbers, CIDR ranges) whose reduction replaces the resource."""
    refuse: frozenset[str] = frozenset()
    """Properties whose change the cloud refuses, although the plugin plans an update."""
    stop: frozenset[str] = frozenset()
    """Properties that can be changed only while the machine is stopped."""
    start: frozenset[str] = frozenset()
    """Properties whose change starts a stopped machine."""
    plain_name: bool = False
    """Whether names contain only lowercase letters and digits."""
    holds_all: bool = False
    """Whether deleting the resource also deletes the resources in it."""

    @cached_property
    def own_name(self) -> str:
        """The last property in `path`, which names the resource, or "" if there is none."""
        return next((name for name in reversed(_HOLE.findall(self.path)) if name not in _PLACES), "")

    def replacing(self, old: Properties, new: Properties) -> set[str]:
        """Return the changed paths (see `changes`) that replace the resource.

        If changing a property replaces the resource, so does adding or removing the object that contains it.
        """
        leaves = [path for path in changes(old, new, whole=False) if self._replaces(path)]
        return {
            path
            for path in changes(old, new)
            if (path in self.shrink and _is_smaller(new.get(path), old.get(path)))
            or f"{_INDEX.sub('', path)}.#" in self.replace
            or any(leaf == path or leaf.startswith((f"{path}.", f"{path}[")) for leaf in leaves)
        }

    def _replaces(self, path: str) -> bool:
        return f"{_INDEX.sub('', path)}.#" in self.replace or covered(path, self.replace)


class Rules:
    def __init__(self, package: str) -> None:
        content: dict[str, Any] = load_own((_FOLDER / f"{package}.yaml").read_text())
        self._always: Sequence[str] = content["replace"]
        self._unlisted: Sequence[str] = content.get("unlisted", ())
        self._types: Mapping[str, Mapping[str, Any]] = content["types"]
        self.values: Mapping[str, Sequence[str]] = content["values"]
        """Mapping from enum to values that the SDK lacks. An enum with an empty list is not checked."""
        self._made: dict[str, Rule] = {}

    def of(self, token: str) -> Rule:
        """Return a type's rules, or the defaults if it has none."""
        if token not in self._made:
            found: dict[str, Any] = dict(self._types.get(token, {"replace": self._unlisted}))
            name = Rule(found.get("path", "")).own_name
            found["replace"] = [*self._always, *([name] if name else []), *found.get("replace", ())]
            effects: dict[str, Any] = {key: frozenset(found.pop(key, ())) for key in _EFFECTS}
            self._made[token] = Rule(**found, **effects)
        return self._made[token]


def fill_path(path: str, values: Mapping[str, str]) -> str:
    """Fill in a path's placeholders. A missing value becomes "offline"."""
    return _HOLE.sub(lambda hole: values.get(hole.group(1), "offline"), path)


def covered(path: str, rules: frozenset[str]) -> bool:
    """Return whether a changed path equals one of the paths in `rules`, contains it, or is inside it."""
    plain = _INDEX.sub("", path)
    return any(plain == rule or plain.startswith(f"{rule}.") or rule.startswith(f"{plain}.") for rule in rules)


def _is_smaller(new: Value, old: Value) -> bool:
    if isinstance(new, float | int) and isinstance(old, float | int):
        return new < old
    if not (isinstance(new, str) and isinstance(old, str)):
        return False
    return ip_network(new, strict=False).prefixlen > ip_network(old, strict=False).prefixlen
