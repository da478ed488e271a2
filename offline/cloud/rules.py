"""Facts that the SDK's classes do not contain: resource paths, and the effects of changed properties."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from offline.changes import changes
from offline.values import Properties, Value
from trainyard.strict_yaml import load_own

_FOLDER = Path(__file__).with_name("rules")
_INDEX = re.compile(r"\[[^\]]*\]")
_HOLE = re.compile(r"\{(\w+)\}")
_PLACES = frozenset({"project", "region", "zone", "location"})


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

    def replaces(self, path: str) -> bool:
        """Return whether a change at this path replaces the resource."""
        return f"{_INDEX.sub('', path)}.#" in self.replace or _covered(path, self.replace)

    def replacing(self, old: Properties, new: Properties) -> set[str]:
        """Return the changed paths (see `changes`) that require a replacement of the resource.

        If a property requires a replacement, adding or removing the object that contains it does too.
        """
        leaves = [*changes(old, new, whole=False)]
        shrunk = {path for path in self.shrink if _is_smaller(new.get(path), old.get(path))}
        return {
            path
            for path in changes(old, new)
            if path in shrunk
            or f"{_INDEX.sub('', path)}.#" in self.replace
            or any(self.replaces(leaf) for leaf in leaves if leaf == path or leaf.startswith((f"{path}.", f"{path}[")))
        }

    def refuses(self, path: str) -> bool:
        """Return whether the cloud refuses an update at this path."""
        return _covered(path, self.refuse)

    def stops(self, path: str) -> bool:
        """Return whether an update at this path requires a stopped machine."""
        return _covered(path, self.stop)

    def starts(self, path: str) -> bool:
        """Return whether an update at this path starts a stopped machine."""
        return _covered(path, self.start)


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
            self._made[token] = self._make(token)
        return self._made[token]

    def _make(self, token: str) -> Rule:
        found = self._types.get(token, {"replace": self._unlisted})
        path = str(found.get("path", ""))
        own_name = Rule(path).own_name
        return Rule(
            path=path,
            replace=frozenset([*self._always, *([own_name] if own_name else []), *found.get("replace", ())]),
            shrink=frozenset(found.get("shrink", ())),
            refuse=frozenset(found.get("refuse", ())),
            stop=frozenset(found.get("stop", ())),
            start=frozenset(found.get("start", ())),
            plain_name=bool(found.get("plain_name")),
            holds_all=bool(found.get("holds_all")),
        )


def fill_path(path: str, values: Mapping[str, str]) -> str:
    """Return a path with its placeholders replaced by values. A missing value becomes "offline"."""
    return _HOLE.sub(lambda hole: values.get(hole.group(1), "offline"), path)


def _covered(path: str, rules: frozenset[str]) -> bool:
    plain = _INDEX.sub("", path)
    return any(plain == rule or plain.startswith(f"{rule}.") or rule.startswith(f"{plain}.") for rule in rules)


def _is_smaller(new: Value, old: Value) -> bool:
    if isinstance(new, float | int) and isinstance(old, float | int):
        return new < old
    if not (isinstance(new, str) and isinstance(old, str)):
        return False
    return ip_network(new, strict=False).prefixlen > ip_network(old, strict=False).prefixlen
