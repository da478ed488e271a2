"""Facts that the SDK's classes do not contain: resource paths, and the effects of changed properties."""

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
    """Rules for a resource type. Property paths contain no list indices. A path matches all paths below it."""

    path: str = ""
    """Pattern for the type's ids, or ""."""
    replace: frozenset[str] = frozenset()
    """A change replaces the resource. A path that ends in ".#" matches an added or removed block or element, but no
    change inside it.
    """
    shrink: frozenset[str] = frozenset()
    """Top-level properties (numbers, CIDR ranges). A change to a smaller value replaces the resource."""
    refuse: frozenset[str] = frozenset()
    """The plugin plans an update, but the cloud refuses the update."""
    stop: frozenset[str] = frozenset()
    """A change requires a stopped machine."""
    start: frozenset[str] = frozenset()
    """A change starts a stopped machine."""
    plain_name: bool = False
    """Names contain only lowercase letters and digits."""
    holds_all: bool = False
    """Deleting the resource deletes the resources in it."""

    @cached_property
    def own_name(self) -> str:
        """The property that names the resource, which is the last property in `path`, or ""."""
        return next((name for name in reversed(_HOLE.findall(self.path)) if name not in _PLACES), "")

    def replacing(self, old: Properties, new: Properties) -> set[str]:
        """Return the changed paths (see `changes`) that require a replacement of the resource.

        If a property requires a replacement, adding or removing the object that contains it does too.
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
    """All rules for a package."""

    def __init__(self, package: str) -> None:
        content: dict[str, Any] = load_own((_FOLDER / f"{package}.yaml").read_text())
        self._always: Sequence[str] = content["replace"]
        self._unlisted: Sequence[str] = content.get("unlisted", ())
        self._types: Mapping[str, Mapping[str, Any]] = content["types"]
        self.values: Mapping[str, Sequence[str]] = content["values"]
        """Additional values for the SDK's enums, by the enum's name. An enum with an empty list is not checked."""
        self._made: dict[str, Rule] = {}

    def of(self, token: str) -> Rule:
        """Return the rules for a type, or the defaults for a type without rules."""
        if token not in self._made:
            found: dict[str, Any] = dict(self._types.get(token, {"replace": self._unlisted}))
            name = Rule(found.get("path", "")).own_name
            found["replace"] = [*self._always, *([name] if name else []), *found.get("replace", ())]
            effects: dict[str, Any] = {key: frozenset(found.pop(key, ())) for key in _EFFECTS}
            self._made[token] = Rule(**found, **effects)
        return self._made[token]


def fill_path(path: str, values: Mapping[str, str]) -> str:
    """Return a path with its placeholders replaced by values. A missing value becomes "offline"."""
    return _HOLE.sub(lambda hole: values.get(hole.group(1), "offline"), path)


def covered(path: str, rules: frozenset[str]) -> bool:
    """Return whether a changed path is one of the rules' paths, inside one, or contains one."""
    plain = _INDEX.sub("", path)
    return any(plain == rule or plain.startswith(f"{rule}.") or rule.startswith(f"{plain}.") for rule in rules)


def _is_smaller(new: Value, old: Value) -> bool:
    if isinstance(new, float | int) and isinstance(old, float | int):
        return new < old
    if not (isinstance(new, str) and isinstance(old, str)):
        return False
    return ip_network(new, strict=False).prefixlen > ip_network(old, strict=False).prefixlen
