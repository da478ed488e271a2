"""Plausible values for what a cloud, not the program, decides. The same resource always gets the same ones."""

from __future__ import annotations

import base64
import hashlib
import uuid
from collections.abc import Callable
from ipaddress import IPv4Network
from pathlib import Path

from offline.cloud.kinds import Kind, ListOf, MapOf, Named, Scalar
from offline.cloud.sdk import Sdk, Shape
from offline.values import UNKNOWN, Properties, Value, signature

_PUBLIC = IPv4Network("203.0.113.0/24")
_PRIVATE = IPv4Network("198.51.100.0/24")
"""Ranges set aside for documentation (RFC 5737): no such address can be reached by mistake."""
_DEEPEST = 4
_KEY_BEGINS = 26
"""Characters of a public key's base64 that are the same in all of its kind."""
_NUMBERS = frozenset({"instanceId", "networkId", "numericId", "subnetworkId", "diskId", "proxyId", "uniqueId"})
_UUIDS = ("Guid", "vmId", "principalId", "clientId", "tenantId", "uniqueId", "resourceGuid", "objectId")
_EPOCH = "1970-01-01T00:00:00Z"
"""When every simulated resource was made: a real time would show as a change."""


def public_address(seed: str) -> str:
    """Return a public address for a resource."""
    return str(_PUBLIC[1 + _number(seed) % (_PUBLIC.num_addresses - 2)])


def private_address(seed: str) -> str:
    """Return a private address for an interface whose subnet is not known."""
    return str(_PRIVATE[1 + _number(seed) % (_PRIVATE.num_addresses - 2)])


def fingerprint(seed: str) -> str:
    """Return a short token like those with which a cloud detects lost updates."""
    return base64.b64encode(hashlib.sha256(seed.encode()).digest()[:8]).decode()


def stable_uuid(seed: str) -> str:
    """Return a UUID for a resource."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"offline:{seed}"))


def host_key(seed: str) -> str:
    """Return an ssh public key in OpenSSH's spelling, with "offline" to be read in it. Nobody has its private half."""
    kind = b"ssh-ed25519"
    key = hashlib.sha256(f"offline host key {seed}".encode()).digest()
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in (kind, key))
    text = base64.b64encode(blob).decode()
    return f"ssh-ed25519 {text[:_KEY_BEGINS]}offline{text[_KEY_BEGINS + len('offline') :]}"


def kept_outputs(old_inputs: Properties, old_outputs: Properties, inputs: Properties) -> Properties:
    """Return the inputs with everything beside them that an update leaves as it was, at any depth.

    The plugins plan an update over the state: what only the cloud knows stays known, also in a preview. A value that
    was an input before, and is not given any more, is gone.
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


def _number(seed: str) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")


class Filler:
    """Fills what the SDK says is always there and nobody gave."""

    def __init__(self, sdk: Sdk, folder: Path, *, preview: bool) -> None:
        self._sdk = sdk
        self._folder = folder
        self._preview = preview

    def fill(self, shape: Shape, given: Properties, seed: str, depth: int = 0) -> Properties:
        """Return `given` with a value for every property that is always there; unknown values in a preview."""
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
            # Given as a list of ids, told as a map from them (a machine's identities).
            return UNKNOWN if self._preview else {str(one): self._made(kind.item, "", path, depth) for one in value}
        if not isinstance(value, dict) or signature(value) or "id" in value or not isinstance(kind, Named):
            return value  # an object with an id is a reference to another resource
        shape = self._sdk.output_shape(self._folder, kind)
        return self.fill(shape, value, path, depth + 1) if shape else value

    def _made(self, kind: Kind, name: str, path: str, depth: int) -> Value:
        if isinstance(kind, Named):
            shape = self._sdk.output_shape(self._folder, kind)
            return self.fill(shape, {}, path, depth + 1) if shape else "offline"
        if kind == Scalar("string"):
            return _text(name, path)
        empty: dict[type, Value] = {ListOf: [], MapOf: {}, Scalar: False if kind == Scalar("boolean") else 0.0}
        return empty.get(type(kind))


_TEXTS: tuple[tuple[Callable[[str], bool], Callable[[str], str]], ...] = (
    (lambda name: name in _NUMBERS, lambda path: str(_number(path))),
    (lambda name: name.endswith(_UUIDS), stable_uuid),
    (lambda name: name.lower().endswith("fingerprint"), fingerprint),
    (lambda name: name == "etag", lambda path: f'W/"{stable_uuid(path)}"'),
    (lambda name: name.endswith(("Timestamp", "Time", "timeCreated", "At")), lambda path: _EPOCH),
    (lambda name: name.lower().endswith(("ipaddress", "ip")), public_address),
    (lambda name: name == "provisioningState", lambda path: "Succeeded"),
)
"""By the name of a property, what its text looks like. The first that fits holds."""


def _text(name: str, path: str) -> str:
    return next((make(path) for fits, make in _TEXTS if fits(name)), "offline")
