"""Property values in the engine's format: JSON in which an object with a signature is a secret, an asset or an archive.

The constants are from Pulumi's property protocol (sdk/go/common/resource/plugin/rpc.go).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

from google.protobuf import struct_pb2

Value: TypeAlias = "bool | float | str | list[Value] | dict[str, Value] | None"
Properties: TypeAlias = dict[str, Value]
Change: TypeAlias = Literal["ADD", "DELETE", "UPDATE"]
"""A kind of change, named as in PropertyDiff.Kind."""

MARK = "4dabf18193072939515e22adb298388d"
SECRET = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - a constant of the protocol
ASSET = "c44067f5952c0a294b673a41bacd8c17"
ARCHIVE = "0def7320c3a5731c473e5ecbe6d01bc7"
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
_PLAIN_KEY = re.compile(r"[A-Za-z_$][\w$-]*")
_UNKNOWNS = frozenset(
    {
        UNKNOWN,
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",  # bool
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",  # number
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",  # array
        "030794c1-ac77-496b-92df-f27374a8bd58",  # asset
        "e48ece36-62e2-4504-bad9-02848725956a",  # archive
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",  # object
    }
)


def from_struct(struct: struct_pb2.Struct) -> Properties:
    """Return the properties in a protobuf message."""
    return {key: _from_wire(value) for key, value in struct.fields.items()}


def _from_wire(value: struct_pb2.Value) -> Value:
    match value.WhichOneof("kind"):
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [_from_wire(item) for item in value.list_value.values]
        case "string_value":
            return value.string_value
        case "number_value":
            return value.number_value
        case "bool_value":
            return value.bool_value
    return None


def to_struct(properties: Mapping[str, Value]) -> struct_pb2.Struct:
    """Return properties as a protobuf message."""
    struct = struct_pb2.Struct()
    struct.update(properties)
    return struct


def signature(value: Value) -> str:
    """Return an object's signature, or "" if the value has none."""
    found = value.get(MARK) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def is_unknown(value: Value) -> bool:
    """Return whether the value will be known only after the update."""
    return isinstance(value, str) and value in _UNKNOWNS


def is_secret(value: Value) -> bool:
    """Return whether the value itself is a secret. Secrets inside the value are ignored."""
    return signature(value) == SECRET


def secret(value: Value) -> Value:
    """Mark a value as a secret."""
    return value if is_secret(value) else {MARK: SECRET, "value": value}


def bare(value: Value) -> Value:
    """Return a secret's plain value, and any other value unchanged. Secrets inside the value stay secrets."""
    while isinstance(value, dict) and is_secret(value):
        value = value.get("value")
    return value


def objects(value: Value) -> list[Properties]:
    """Return the objects in a list, or an empty list for any other value."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def reveal(value: Value) -> Value:
    """Return the value without any secret marks."""
    value = bare(value)
    if isinstance(value, list):
        return [reveal(item) for item in value]
    if isinstance(value, dict):
        return {key: reveal(item) for key, item in value.items()}
    return value


def changes(old: Mapping[str, Value], new: Mapping[str, Value], *, whole: bool = True) -> dict[str, Change]:
    """Compare two sets of properties. Return a mapping from path ("triggers[0]", "environment.A") to kind of change.

    A secret counts as a single value, and keys that the engine adds are ignored. If `whole` is set, an added or removed
    object or list counts as one change. Otherwise, each value inside it counts as a change.
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
        yield path, "ADD" if old is None else "DELETE"
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            was, now = (items[index] if index < len(items) else None for items in (old, new))
            yield from _changes(f"{path}[{index}]", was, now, whole)
    elif isinstance(old, dict) and isinstance(new, dict) and not (signature(old) or signature(new)):
        yield from _object_changes(path, old, new, whole)
    elif not _same_content(old, new):
        yield path, "UPDATE"


def _emptied(value: Value, other: Value) -> Value:
    """Replace a missing value with an empty list or object if `other` is a list or object that is not empty."""
    if value is not None or not isinstance(other, dict | list) or not other:
        return value
    if isinstance(other, list):
        return []
    return None if signature(other) else {}


def _same_content(old: Value, new: Value) -> bool:
    """Return whether two assets have the same content, according to the hash that the engine adds."""
    if not (isinstance(old, dict) and isinstance(new, dict) and signature(old) == signature(new)):
        return False
    return bool(old.get("hash")) and old.get("hash") == new.get("hash")


def _joined(path: str, key: str) -> str:
    if not _PLAIN_KEY.fullmatch(key):
        return f'{path}["{key}"]'
    return f"{path}.{key}" if path else key
