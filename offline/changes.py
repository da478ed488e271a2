"""Differences between two sets of inputs, for the detailed diff in Pulumi's provider protocol."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import Enum

from offline.values import Properties, Value, signature

_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$-]*")


class Change(Enum):
    """A kind of change. The values are names of PropertyDiff.Kind."""

    ADD = "ADD"
    DELETE = "DELETE"
    UPDATE = "UPDATE"


def changes(old: Mapping[str, Value], new: Mapping[str, Value], *, whole: bool = True) -> dict[str, Change]:
    """Return the changed paths ("triggers[0]", "environment.A").

    All changes inside a secret are reported as one change of the secret. Keys added by the engine are ignored. If
    `whole` is set, an added or removed object or list is one change. Otherwise, each value in it is a separate change.
    """
    return dict(_object_changes("", _own(old), _own(new), whole))


def _own(properties: Mapping[str, Value]) -> Properties:
    return {key: value for key, value in properties.items() if key != "version" and not key.startswith("__")}


def _object_changes(
    path: str, old: Mapping[str, Value], new: Mapping[str, Value], whole: bool
) -> Iterator[tuple[str, Change]]:
    for key in sorted({*old, *new}):
        yield from _changes(_joined(path, key), old.get(key), new.get(key), whole)


def _changes(path: str, old: Value, new: Value, whole: bool) -> Iterator[tuple[str, Change]]:
    if old == new:
        return
    if not whole and (old is None or new is None):
        old, new = _emptied(old, new), _emptied(new, old)
    if old is None or new is None:
        yield path, Change.ADD if old is None else Change.DELETE
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            was, now = (items[index] if index < len(items) else None for items in (old, new))
            yield from _changes(f"{path}[{index}]", was, now, whole)
    elif isinstance(old, dict) and isinstance(new, dict) and not (signature(old) or signature(new)):
        yield from _object_changes(path, old, new, whole)
    elif not _same_content(old, new):
        yield path, Change.UPDATE


def _emptied(value: Value, other: Value) -> Value:
    """Return `value`. If `value` is None and `other` is a non-empty list or object, return an empty list or object."""
    if value is not None or not isinstance(other, dict | list) or not other:
        return value
    if isinstance(other, list):
        return []
    return None if signature(other) else {}


def _same_content(old: Value, new: Value) -> bool:
    """Return whether two assets have the same content. The engine adds a hash of the content."""
    if not (isinstance(old, dict) and isinstance(new, dict) and signature(old) == signature(new)):
        return False
    return bool(old.get("hash")) and old.get("hash") == new.get("hash")


def _joined(path: str, key: str) -> str:
    if not _PLAIN_KEY.fullmatch(key):
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key
