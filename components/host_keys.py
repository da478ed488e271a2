"""A resource that stores each machine's first SSH host key in the stack's state."""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from trainyard.errors import PlatformError
from trainyard.machines import ACCEPT
from trainyard.outputs import HOST_KEY

Known = Mapping[str, Mapping[str, str]]
"""Mapping from host name to the stored key (`key`) and the ID of its machine (`machine`)."""
Offer = Mapping[str, Any]
"""A host's key as its platform reports it: `name`, `machine`, `key` ("" if it is not available) and `declared`, which
states whether the key is from the stack file."""


def merged_keys(known: Known, offers: Sequence[Offer], accepted: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the keys to store, which are the machines' first keys.

    A stored key remains if none is reported, for example for an evicted machine. Only a key in the stack file or with
    an `accepted` fingerprint replaces a stored key. Raises PlatformError for all missing, malformed and changed keys.
    """
    stored: dict[str, dict[str, str]] = {}
    missing, malformed, changed = list[str](), list[str](), dict[str, str]()
    for offer in offers:
        name, machine, key = str(offer["name"]), str(offer["machine"]), _without_comment(str(offer["key"]))
        before = known.get(name, {})
        old = before.get("key", "") if before.get("machine") == machine else ""
        if key and not HOST_KEY.fullmatch(key):
            malformed.append(name)
        elif not (key or old):
            missing.append(name)
        elif old and key not in ("", old) and not (offer["declared"] or fingerprint(key) in accepted):
            changed[name] = fingerprint(key)
        else:
            stored[name] = {"machine": machine, "key": key or old}
    _refuse(missing, malformed, changed)
    return stored


def fingerprint(key: str) -> str:
    """Return a public key's fingerprint in the format of `ssh-keygen -l`."""
    digest = hashlib.sha256(base64.b64decode(key.split(" ")[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _without_comment(key: str) -> str:
    # Splitting only at spaces preserves a line break, so that such a key counts as malformed.
    return " ".join(key.split(" ")[:2])


def _refuse(missing: Sequence[str], malformed: Sequence[str], changed: Mapping[str, str]) -> None:
    problems = []
    if missing:
        problems.append(
            f"no SSH host key is known for {', '.join(missing)}. Fix: start the machines if they are stopped, read "
            "their serial consoles if the first boot failed, check this computer's clock, then run `pulumi up` "
            "again"
        )
    if malformed:
        problems.append(
            f"{', '.join(malformed)}: the SSH host key is not one line with a type and base64 text. Fix: inspect the "
            "machine, because a process on it may have published this text; then replace the machine"
        )
    if changed:
        problems.append(
            f"{', '.join(f'{name} ({new})' for name, new in changed.items())}: the SSH host key has changed although "
            "the machine is the same. This may be an attack. Fix: compare the new fingerprint with the fingerprint on "
            "the machine's serial console; if the key was changed on purpose, run `pulumi up --config "
            f"{ACCEPT}={','.join(changed.values())}`"
        )
    if problems:
        raise PlatformError("\n".join(problems))


class _Provider(ResourceProvider):
    def diff(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> DiffResult:
        try:
            return DiffResult(changes=_merge(olds, news) != olds["known"])
        except PlatformError:
            return DiffResult(changes=True)  # `update` reports it

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(id_=f"{props['cluster']}-host-keys", outs=_outs({"known": {}}, props))

    def update(self, _id: str, olds: dict[str, Any], news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(outs=_outs(olds, news))


def _outs(olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {**news, "known": _merge(olds, news)}
    except PlatformError:
        sys.tracebacklimit = 0  # otherwise the engine prints the traceback before the message
        raise


def _merge(olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    offers = news["offers"]
    if not isinstance(offers, list):  # unknown in a preview
        return {}
    return merged_keys(olds["known"], offers, news["accepted"])


class HostKeys(Resource):
    """The SSH host keys of a cluster's machines."""

    known: pulumi.Output[dict[str, dict[str, str]]]

    def __init__(
        self,
        name: str,
        cluster: str,
        offers: pulumi.Input[Sequence[Offer]],
        accepted: Collection[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {"cluster": cluster, "offers": offers, "accepted": sorted(accepted), "known": None}
        super().__init__(_Provider(), name, props, opts)
