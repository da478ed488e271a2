"""The hosts' SSH host keys as the stack keeps them: one resource that remembers the first key of each machine."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource, ResourceProvider, UpdateResult

from components.errors import PlatformError
from components.host_key_format import HOST_KEY

ACCEPT = "TRAINYARD_ACCEPT_HOST_KEYS"
"""Environment variable: names of hosts, separated by commas, whose changed keys one `up` accepts."""

Known = Mapping[str, Mapping[str, str]]
"""By host name: `machine`, the machine id, and `key`."""
Offer = Mapping[str, Any]
"""What a platform knows of one host now: `name`, `machine`, `key` ("" if none is available), `declared`."""


def merged(known: Known, offers: Sequence[Offer], accepted: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the keys to keep: the first of each machine, and of a machine that is gone none.

    A machine that offers no key at present, as an evicted one, keeps the key that is known. A key that the stack file
    declares always counts. Raises PlatformError for keys that are missing, malformed or changed, all in one message.
    """
    kept: dict[str, dict[str, str]] = {}
    missing, malformed, changed = list[str](), list[str](), list[str]()
    for offer in offers:
        name, machine, key = str(offer["name"]), str(offer["machine"]), _without_comment(str(offer["key"]))
        before = known.get(name, {})
        old = before.get("key", "") if before.get("machine") == machine else ""
        if key and not HOST_KEY.fullmatch(key):
            malformed.append(name)
        elif not (key or old):
            missing.append(name)
        elif old and key not in ("", old) and not (offer["declared"] or name in accepted):
            changed.append(name)
        else:
            kept[name] = {"machine": machine, "key": key or old}
    _refuse(missing, malformed, changed)
    return kept


def _without_comment(key: str) -> str:
    # At spaces alone: a line break must stay in the key, which is then refused.
    return " ".join(key.split(" ")[:2])


def _refuse(missing: Sequence[str], malformed: Sequence[str], changed: Sequence[str]) -> None:
    problems = []
    if missing:
        problems.append(
            f"no SSH host key is known of {', '.join(missing)}. Fix: start them if they are stopped, read their serial "
            "console for the reason if their first boot failed, compare the clock of this computer, then run "
            "`pulumi up` again"
        )
    if malformed:
        problems.append(
            f"{', '.join(malformed)}: the SSH host key is not one line of type and base64. Fix: inspect the machine, "
            "because a process on it may have published the text, and replace it"
        )
    if changed:
        problems.append(
            f"{', '.join(changed)}: the SSH host key has changed although the machine is the same. This can be an "
            "attack. Fix: compare the key on the machine's serial console; if it was changed on purpose, run "
            f"`pulumi up` once with {ACCEPT}={','.join(changed)} in the environment"
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
        sys.tracebacklimit = 0  # the message explains itself, and the engine would print the traceback first
        raise


def _merge(olds: Mapping[str, Any], news: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    offers = news["offers"]
    if not isinstance(offers, list):  # unknown in a preview
        return {}
    return merged(olds["known"], offers, news["accepted"])


class HostKeys(Resource):
    """The host keys of all machines of a cluster. One resource for any number of nodes."""

    known: pulumi.Output[dict[str, dict[str, str]]]
    """By host name: `machine`, the machine id, and `key`."""

    def __init__(
        self,
        name: str,
        cluster: str,
        offers: pulumi.Input[Sequence[Offer]],
        accepted: Sequence[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        props = {"cluster": cluster, "offers": offers, "accepted": sorted(accepted), "known": None}
        super().__init__(_Provider(), name, props, opts)
