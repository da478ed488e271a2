"""Invented values for the outputs that a cloud chooses. The values are the same in every run."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

from offline.boot.machine import PUBLIC as LOOPBACK
from offline.boot.machine import is_wanted
from offline.cloud.sdk import Kind, ListOf, MapOf, Named, Scalar, Sdk, Shape
from offline.values import UNKNOWN, Properties, Value, signature

_PUBLIC = IPv4Network("203.0.113.0/24")
_PRIVATE = IPv4Network("198.51.100.0/24")
"""Both ranges are reserved for documentation (RFC 5737), so their addresses belong to no real machine."""
_DEEPEST = 4
_KEY_BEGINS = 26
"""Length of the base64 prefix that all ed25519 public keys share."""
_NUMBERS = frozenset({"instanceId", "networkId", "numericId", "subnetworkId", "diskId", "proxyId", "uniqueId"})
_UUIDS = ("Guid", "vmId", "principalId", "clientId", "tenantId", "uniqueId", "resourceGuid", "objectId")
_EPOCH = "1970-01-01T00:00:00Z"
"""Every resource has the same creation time, because a new time would appear in the next diff."""


def public_address(seed: str) -> str:
    """Return a public address. If machines are booted, it is an address of this computer."""
    network = LOOPBACK if is_wanted() else _PUBLIC
    return str(network[1 + number(seed) % (network.num_addresses - 2)])


def private_address(seed: str) -> str:
    """Return a private address for an interface whose subnet is unknown."""
    return str(_PRIVATE[1 + number(seed) % (_PRIVATE.num_addresses - 2)])


def fingerprint(seed: str) -> str:
    """Return a fingerprint like those that clouds use to detect concurrent updates."""
    return base64.b64encode(hashlib.sha256(seed.encode()).digest()[:8]).decode()


def stable_uuid(seed: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"offline:{seed}"))


def host_key(seed: str) -> str:
    """Return an SSH public key that contains the text "offline". Nobody knows its private key."""
    kind = b"ssh-ed25519"
    key = hashlib.sha256(f"offline host key {seed}".encode()).digest()
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, key))
    text = base64.b64encode(blob).decode()
    return f"ssh-ed25519 {text[:_KEY_BEGINS]}offline{text[_KEY_BEGINS + len('offline') :]}"


def kept_outputs(old_inputs: Properties, old_outputs: Properties, inputs: Properties) -> Properties:
    """Return the new inputs, completed (at any depth) with the outputs that an update keeps.

    A preview knows these outputs, because the real plugins also plan an update from the state.
    """
    outputs = {name: value for name, value in old_outputs.items() if name not in old_inputs}
    return {**outputs, **{name: _kept(old_inputs.get(name), old_outputs.get(name), inputs[name]) for name in inputs}}


def _kept(old_input: Value, old_output: Value, given: Value) -> Value:
    if isinstance(given, list) and isinstance(old_output, list):
        old_inputs = old_input if isinstance(old_input, list) else []
        rest = len(given) * [None]
        return [_kept(*one) for one in zip([*old_inputs, *rest], [*old_output, *rest], given, strict=False)]
    if not (isinstance(given, dict) and isinstance(old_output, dict)) or signature(given) or signature(old_output):
        return given
    return kept_outputs(old_input if isinstance(old_input, dict) else {}, old_output, given)


def number(seed: str) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")


class Filler:
    """Adds the outputs that a resource type requires. In a preview, their values are unknown."""

    def __init__(self, sdk: Sdk, folder: Path, *, preview: bool) -> None:
        self._sdk = sdk
        self._folder = folder
        self._preview = preview

    def fill(self, shape: Shape, given: Properties, seed: str, depth: int = 0) -> Properties:
        """Return `given`, completed with a value for each property that `shape` requires."""
        filled: Properties = {}
        for name, described in shape.items():
            path = f"{seed}/{name}"
            if name in given and given[name] is not None:
                filled[name] = self._inside(described.kind, given[name], path, depth)
            elif described.required and depth < _DEEPEST:
                filled[name] = UNKNOWN if self._preview else self._made(described.kind, name, path, depth)
        return {**given, **filled}

    def _inside(self, kind: Kind, value: Value, path: str, depth: int) -> Value:
        if isinstance(kind, ListOf) and isinstance(value, list):
            return [self._inside(kind.item, item, f"{path}/{index}", depth) for index, item in enumerate(value)]
        if isinstance(kind, MapOf) and isinstance(value, list):
            # A machine's identities are a list of IDs in the inputs, but a map with these IDs as keys in the outputs.
            return UNKNOWN if self._preview else {str(one): self._made(kind.item, "", path, depth) for one in value}
        if not isinstance(value, dict) or signature(value) or "id" in value or not isinstance(kind, Named):
            return value  # an object with an ID is a reference to another resource
        shape = self._sdk.output_shape(self._folder, kind)
        return self.fill(shape, value, path, depth + 1) if shape else value

    def _made(self, kind: Kind, name: str, path: str, depth: int) -> Value:
        if isinstance(kind, Named):
            shape = self._sdk.output_shape(self._folder, kind)
            return self.fill(shape, {}, path, depth + 1) if shape else "offline"
        if kind == Scalar("string"):
            return next((make(path) for fits, make in _TEXTS if fits(name)), "offline")
        if isinstance(kind, Scalar):
            return {"boolean": False, "integer": 0.0, "number": 0.0}.get(kind.name)
        return [] if isinstance(kind, ListOf) else {} if isinstance(kind, MapOf) else None


_TEXTS: tuple[tuple[Callable[[str], bool], Callable[[str], str]], ...] = (
    (lambda name: name in _NUMBERS, lambda path: str(number(path))),
    (lambda name: name.endswith(_UUIDS), stable_uuid),
    (lambda name: name.lower().endswith("fingerprint"), fingerprint),
    (lambda name: name == "etag", lambda path: f'W/"{stable_uuid(path)}"'),
    (lambda name: name.endswith(("Timestamp", "Time", "timeCreated", "At")), lambda path: _EPOCH),
    (lambda name: name.lower().endswith(("ipaddress", "ip")), public_address),
    (lambda name: name == "provisioningState", lambda path: "Succeeded"),
)
"""Conditions on a property's name, each with a function that makes the value. The first match applies."""
