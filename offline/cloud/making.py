"""Create, read, update and delete resources in a simulated cloud according to the rules of the real cloud."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from offline.changes import changes
from offline.cloud import azure_refusals
from offline.cloud.addressing import AddressRequest, problem
from offline.cloud.cloud import Cloud
from offline.cloud.drift import deallocated, drifted, evicted
from offline.cloud.fault_messages import THROTTLED, refusal
from offline.cloud.faults import Fault, strikes
from offline.cloud.outputs import Filler, kept_outputs
from offline.cloud.sdk import Described
from offline.cloud.world import Record, World, with_secrets, without_secrets
from offline.processes import is_running
from offline.resources import Operation, ResourceError
from offline.values import Properties, Value, reveal

_BACKOFF_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Delays in seconds after error 429. The real plugins make the same number of attempts, but wait at least one second
before each attempt."""
_ABANDONED = -1
"""`made_by` value of a resource whose creation timed out. No process has this id."""
_STATUS = frozenset({"currentStatus", "offlineEvicted"})
"""Outputs that exist only on a stopped machine. Starting the machine removes them."""


@dataclass(frozen=True)
class Made:
    """A resource as recorded in the engine's state before an update."""

    inputs: Properties = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)


class Maker:
    """One operation on a resource."""

    def __init__(self, cloud: Cloud, world: World, described: Described, operation: Operation) -> None:
        self._cloud = cloud
        self._world = world
        self._described = described
        self._operation = operation
        self._rule = cloud.rules.of(described.token)

    def create(self, inputs: Properties, *, may_adopt: bool) -> tuple[str, Properties]:
        """Create the resource and return its id and outputs.

        If `may_adopt` is set, a resource that a killed run created with the same inputs is adopted.
        """
        plain = _plain(inputs)
        if refused := self._cloud.refused_location(plain):
            raise ResourceError(refused)
        identity = self._cloud.identity(self._described, plain)
        record = replace(self._record(identity, inputs), made_by=os.getpid())
        late = self._meet_faults("create", plain)
        with self._world.locked():
            self._refuse_existing(record, may_adopt)
            self._refuse_invalid(record, None)
            self._world.put(record)
        self._wait_for(late)
        if any(fault.fault == "timed-out" for fault in late):
            self._world.put(replace(record, made_by=_ABANDONED))
            raise ResourceError(refusal(self._cloud.package, "timed-out", self._operation.name, plain))
        return identity, self._finish(identity, inputs)

    def read(self, identity: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        """Return the resource's inputs and outputs, or None if it does not exist.

        The secrets are from `inputs` and `outputs`, which come from the engine's state.
        """
        for fault in strikes(self._world, "read", self._described.token, self._operation.name):
            self._apply_fault(fault, identity)
        record = self._world.find(identity)
        if record is None:
            return None
        return with_secrets(record.inputs, inputs), with_secrets(record.outputs, outputs)

    def update(self, identity: str, inputs: Properties, old: Made) -> Properties:
        """Update the resource and return its outputs. Raises ResourceError for a change that the cloud refuses."""
        plain = _plain(inputs)
        changed = [*changes(old.inputs, inputs)]
        refused = next((path for path in changed if self._rule.refuses(path)), None)
        if refused is not None:
            raise ResourceError(self._cloud.refused(refused))
        stopped = next((path for path in changed if self._rule.stops(path)), None)
        if stopped is not None and not plain.get("allowStoppingForUpdate"):
            raise ResourceError(
                f"Changing the {stopped} on a started instance requires stopping it. Fix: set "
                "allow_stopping_for_update=True, or have the resource replaced"
            )
        late = self._meet_faults("update", plain)
        with self._world.locked():
            record = self._world.find(identity)
            if record is None:
                raise ResourceError(
                    f"404 NotFound: {identity} does not exist. Fix: run `pulumi refresh`, then `pulumi up`"
                )
            self._refuse_invalid(self._record(identity, inputs), record)
        self._wait_for(late)
        outputs = with_secrets(record.outputs, old.outputs)
        if stopped is not None or any(self._rule.starts(path) for path in changed):
            outputs = {name: value for name, value in outputs.items() if name not in _STATUS}
        return self._finish(identity, inputs, Made(old.inputs, outputs))

    def delete(self, identity: str) -> None:
        """Delete the resource if it exists. Raises ResourceError if another resource uses it."""
        record = self._world.find(identity)
        if record is None:
            return
        self._wait_for(self._meet_faults("delete", _plain(record.inputs)))
        with self._world.locked():
            if refused := azure_refusals.deletion_refusal(self._described.token, identity, self._world):
                raise ResourceError(refused)
            user = None if self._rule.holds_all else self._user_of(identity, self._inside(identity))
            if user:
                adopt = "an interrupted run left it behind; run `pulumi up`, which adopts it, then `pulumi destroy`"
                fix = adopt if user.made_by else "delete that first"
                raise ResourceError(f"409 InUse: {identity} is used by {user.id}. Fix: {fix}")
            self._remove(identity)

    def _inside(self, identity: str) -> list[Record]:
        start = f"{identity.lower()}/"
        return [found for found in self._world.linked(identity) if found.id.lower().startswith(start)]

    def _remove(self, identity: str) -> None:
        for found in self._inside(identity):
            self._world.remove(found.id)
        self._world.remove(identity)

    def _finish(self, identity: str, inputs: Properties, old: Made | None = None) -> Properties:
        filler = Filler(self._cloud.sdk, self._described.folder, preview=False)
        known = _known_outputs(self._cloud, self._described, inputs, old or Made())
        own = self._cloud.computed(self._described, identity, known, self._world)
        outputs = filler.fill(self._described.outputs, own, self._world.seed(identity))
        self._world.put(replace(self._record(identity, inputs), outputs=outputs))
        return outputs

    def _record(self, identity: str, inputs: Properties) -> Record:
        """Return a record of this resource, which is complete but has no outputs."""
        plain, token = _plain(inputs), self._described.token
        uses = tuple(needed for text in _texts(plain) if (needed := self._cloud.refers(text)))
        claims = tuple(map(self._claim, self._cloud.requested_addresses(token, plain)))
        return Record(identity, token, self._operation.urn, inputs, {}, uses=uses, claims=claims)

    def _claim(self, request: AddressRequest) -> str:
        return f"{self._cloud.refers(request.subnet)}#{request.address}"

    def _meet_faults(self, operation: str, plain: Properties) -> list[Fault]:
        """Raise ResourceError for a fault that prevents the operation, and return the faults that occur during it."""
        for wait in (*_BACKOFF_SECONDS, None):
            met = strikes(self._world, operation, self._described.token, self._operation.name)
            refusing = next((fault for fault in met if fault.fault in ("quota", "stockout")), None)
            if refusing:
                raise ResourceError(refusal(self._cloud.package, refusing.fault, self._operation.name, plain))
            if not any(fault.fault == "throttled" for fault in met):
                return met
            if wait is not None:
                self._operation.status(f"{THROTTLED[self._cloud.package]}: next attempt in {wait:g} s")
                self._operation.stop.wait(wait)
        raise ResourceError(f"{THROTTLED[self._cloud.package]}, still after {len(_BACKOFF_SECONDS)} retries")

    def _wait_for(self, met: Sequence[Fault]) -> None:
        for fault in met:
            if fault.fault == "slow":
                self._operation.stop.wait(fault.seconds)

    def _refuse_existing(self, record: Record, may_adopt: bool) -> None:
        found = self._world.find(record.id)
        if found is None:
            return
        incomplete = found.made_by != 0 and not is_running(found.made_by)
        unrecorded = found.made_by == 0 and without_secrets(record.inputs) == found.inputs
        # An incomplete resource is adopted even if the interrupted run was a replacement.
        if found.urn == record.urn and (incomplete or (may_adopt and unrecorded)):
            self._operation.warning(
                f"{record.id} was left by an interrupted run and is adopted. A real cloud may return 'already exists': "
                "in that case, run `pulumi refresh --import-pending-creates`, and `pulumi up` again"
            )
            return
        raise ResourceError(f"409 AlreadyExists: {record.id} exists. Fix: use another name, or import or delete it")

    def _refuse_invalid(self, record: Record, before: Record | None) -> None:
        """Raise ResourceError for a missing reference, a state that the cloud refuses, or an invalid address."""
        missing = next((needed for needed in record.uses if not self._exists(needed)), None)
        if missing is not None:
            raise ResourceError(f"404 NotFound: {missing} does not exist. Fix: create it, or correct the reference")
        plain = _plain(record.inputs)
        attempt = azure_refusals.Attempt(record.id, plain, before, self._world)
        if refused := azure_refusals.refusal(record.token, attempt):
            raise ResourceError(refused)
        for request in self._cloud.requested_addresses(record.token, plain):
            subnet = self._world.find(self._cloud.refers(request.subnet))
            others = [found for found in self._world.linked(self._claim(request)) if found.id != record.id]
            taken = [request.address] if others else []
            ranges = self._cloud.ranges(subnet.inputs) if subnet else ()
            if refused := problem(request, ranges, self._cloud.reserved_addresses, taken):
                raise ResourceError(f"400 InvalidAddress: {record.id}: {refused}")

    def _exists(self, identity: str) -> bool:
        """Return whether a resource or its parent exists. The parent is sufficient, because a subnet may be part of its
        network's inputs."""
        parents = [identity, identity.rpartition("/")[0].rpartition("/")[0]]
        return any(self._world.find(one) is not None for one in parents)

    def _user_of(self, identity: str, inside: Sequence[Record]) -> Record | None:
        own = {identity.lower(), *(found.id.lower() for found in inside)}
        for record in (found for one in sorted(own) for found in self._world.linked(one)):
            if record.id.lower() not in own and any(used.lower() in own for used in record.uses):
                return record
        return None

    def _apply_fault(self, fault: Fault, identity: str) -> None:
        record = self._world.find(identity)
        if record is None:
            return
        match fault.fault:
            case "deleted":
                changed = None
            case "evicted":
                changed = evicted(record)
            case "deallocated":
                changed = deallocated(record)
            case _:
                changed = drifted(record, fault.set)
        if changed is None:
            self._remove(identity)
        else:
            self._world.put(changed)


def preview_outputs(cloud: Cloud, described: Described, inputs: Properties, old: Made | None = None) -> Properties:
    """Return the outputs of a create operation, or of an update of `old`. The values that the cloud chooses are
    unknown.
    """
    known = _known_outputs(cloud, described, inputs, old or Made())
    return Filler(cloud.sdk, described.folder, preview=True).fill(described.outputs, known, "")


def _known_outputs(cloud: Cloud, described: Described, inputs: Properties, old: Made) -> Properties:
    """Return the outputs that depend only on the inputs, and the outputs that an update does not change (an id, a
    link).
    """
    kept = kept_outputs(old.inputs, old.outputs, inputs)
    return {**kept, **cloud.given(described, _plain(inputs)), **{name: kept[name] for name in inputs}}


def _plain(properties: Properties) -> Properties:
    return {name: reveal(value) for name, value in properties.items() if not name.startswith("__")}


def _texts(value: Value) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _texts(item)
        case dict():
            for item in value.values():
                yield from _texts(item)
