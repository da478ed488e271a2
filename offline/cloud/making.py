"""Making, reading, changing and deleting resources of a simulated cloud, with the rules that a real one enforces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from offline.changes import changes
from offline.cloud import azure_refusals
from offline.cloud.addressing import Wish, problem
from offline.cloud.cloud import Cloud
from offline.cloud.drift import deallocated, drifted, evicted
from offline.cloud.faults import Fault, strikes
from offline.cloud.outputs import Filler, kept_outputs
from offline.cloud.sdk import Described
from offline.cloud.words import THROTTLED, refusal
from offline.cloud.world import Record, World, with_secrets, without_secrets
from offline.processes import is_running
from offline.resources import Operation, ResourceError
from offline.values import Properties, Value, reveal

_BACKOFF_SECONDS = (0.1, 0.2, 0.4, 0.8, 1.6)
"""Waits after a 429. The real plugins begin at a second; the number of attempts is alike."""
_ABANDONED = -1
"""Value of `made_by` after a create that timed out: no process with this id can exist."""
_STATUS = frozenset({"currentStatus", "offlineEvicted"})
"""Outputs of a stopped machine that a start sets anew."""
_NEVER_IN_THE_WAY = (":authorization:", "/iAM")
"""Grants name what they are about, and do not keep it from being deleted."""


@dataclass(frozen=True)
class Made:
    """A resource before an update, as the engine's state has it."""

    inputs: Properties = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)


class Maker:
    """One operation on one resource."""

    def __init__(self, cloud: Cloud, world: World, described: Described, operation: Operation) -> None:
        self._cloud = cloud
        self._world = world
        self._described = described
        self._operation = operation
        self._rule = cloud.rules.of(described.token)

    def create(self, inputs: Properties, *, may_adopt: bool) -> tuple[str, Properties]:
        """Make it and return its id and outputs. `may_adopt`: take over what a killed run may have left."""
        plain = _plain(inputs)
        if refused := self._cloud.misplaced(plain):
            raise ResourceError(refused)
        identity = self._cloud.identity(self._described, plain)
        record = replace(self._record(identity, inputs), made_by=os.getpid())
        late = self._meet_faults("create", plain)
        with self._world.locked():
            self._refuse_existing(record, may_adopt)
            self._refuse_missing(record)
            self._refuse_state(identity, plain, None)
            self._refuse_addresses(record)
            self._world.put(record)
        self._take_time(late)
        if any(fault.fault == "timed-out" for fault in late):
            self._world.put(replace(record, made_by=_ABANDONED))
            raise ResourceError(refusal(self._cloud.package, "timed-out", self._operation.name, plain))
        return identity, self._finish(identity, inputs)

    def read(self, identity: str, inputs: Properties, outputs: Properties) -> tuple[Properties, Properties] | None:
        """Return what the cloud says of it now, None when it is gone. `inputs` and `outputs` are the engine's."""
        for fault in strikes(self._world, "read", self._described.token, self._operation.name):
            self._befall(fault, identity)
        record = self._world.find(identity)
        if record is None:
            return None
        return with_secrets(record.inputs, inputs), with_secrets(record.outputs, outputs)

    def update(self, identity: str, inputs: Properties, old: Made) -> Properties:
        """Change it and return its outputs. Raises ResourceError for a change that the cloud does not allow."""
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
                raise ResourceError(f"404 NotFound: {identity} is gone. Fix: run `pulumi refresh`, then `pulumi up`")
            changed_record = self._record(identity, inputs)
            self._refuse_missing(changed_record)
            self._refuse_state(identity, plain, record)
            self._refuse_addresses(changed_record)
        self._take_time(late)
        outputs = with_secrets(record.outputs, old.outputs)
        if stopped is not None or any(self._rule.starts(path) for path in changed):
            outputs = {name: value for name, value in outputs.items() if name not in _STATUS}
        return self._finish(identity, inputs, Made(old.inputs, outputs))

    def delete(self, identity: str) -> None:
        """Delete it; what is gone already is no problem. Raises ResourceError while something else uses it."""
        record = self._world.find(identity)
        if record is None:
            return
        self._take_time(self._meet_faults("delete", _plain(record.inputs)))
        with self._world.locked():
            if refused := azure_refusals.deletion_refusal(self._described.token, identity, self._world):
                raise ResourceError(refused)
            user = None if self._rule.holds_all else self._user_of(identity, self._inside(identity))
            if user:
                finish = (
                    "run `pulumi up` again, which takes it over, then `pulumi destroy`: a run that was cut off left it"
                )
                fix = finish if user.made_by else "delete that first"
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
        """Return the record of this resource, finished and with no outputs yet."""
        uses = [needed for text in _texts(_plain(inputs)) if (needed := self._cloud.refers(text))]
        claims = [self._claim(wish) for wish in self._cloud.wishes(self._described.token, _plain(inputs))]
        token, urn = self._described.token, self._operation.urn
        return Record(identity, token, urn, inputs, {}, uses=tuple(uses), claims=tuple(claims))

    def _claim(self, wish: Wish) -> str:
        return f"{self._cloud.refers(wish.subnet)}#{wish.address}"

    def _meet_faults(self, operation: str, plain: Properties) -> list[Fault]:
        """Meet the faults that stand before an operation, and return those that come in its course."""
        for wait in (*_BACKOFF_SECONDS, None):
            met = strikes(self._world, operation, self._described.token, self._operation.name)
            refusing = next((fault for fault in met if fault.fault in ("quota", "stockout")), None)
            if refusing:
                raise ResourceError(refusal(self._cloud.package, refusing.fault, self._operation.name, plain))
            if not any(fault.fault == "throttled" for fault in met):
                return met
            if wait is not None:
                self._operation.status(f"{THROTTLED[self._cloud.package]}: trying again in {wait:g} s")
                self._operation.stop.wait(wait)
        raise ResourceError(f"{THROTTLED[self._cloud.package]}, still after {len(_BACKOFF_SECONDS)} retries")

    def _take_time(self, met: Sequence[Fault]) -> None:
        for fault in met:
            if fault.fault == "slow":
                self._operation.stop.wait(fault.seconds)

    def _refuse_existing(self, record: Record, may_adopt: bool) -> None:
        found = self._world.find(record.id)
        if found is None:
            return
        half_made = found.made_by != 0 and not is_running(found.made_by)
        unnoted = found.made_by == 0 and without_secrets(record.inputs) == found.inputs
        # What nobody finished is nobody's, also where the run before was replacing it.
        if found.urn == record.urn and (half_made or (may_adopt and unnoted)):
            self._operation.warning(
                f"{record.id} was left by a run that was cut off, and is taken over. A real cloud may answer "
                "'already exists' here: then `pulumi refresh --import-pending-creates`, and `pulumi up` again"
            )
            return
        raise ResourceError(f"409 AlreadyExists: {record.id} exists. Fix: give another name, import it, or delete it")

    def _refuse_missing(self, record: Record) -> None:
        missing = next((needed for needed in record.uses if not self._exists(needed)), None)
        if missing is not None:
            raise ResourceError(f"404 NotFound: {missing} does not exist. Fix: create it first, or mend the reference")

    def _refuse_state(self, identity: str, inputs: Properties, before: Record | None) -> None:
        attempt = azure_refusals.Attempt(identity, inputs, before, self._world)
        if refused := azure_refusals.refusal(self._described.token, attempt):
            raise ResourceError(refused)

    def _refuse_addresses(self, record: Record) -> None:
        for wish in self._cloud.wishes(record.token, _plain(record.inputs)):
            subnet = self._world.find(self._cloud.refers(wish.subnet))
            others = (found for found in self._world.linked(self._claim(wish)) if found.id != record.id)
            taken = {wish.address for _ in others}
            ranges = self._cloud.ranges(subnet.inputs) if subnet else ()
            refused = problem(wish, ranges, self._cloud.reserved_addresses, taken)
            if refused:
                raise ResourceError(f"400 InvalidAddress: {record.id}: {refused}")

    def _exists(self, identity: str) -> bool:
        """Tell whether it, or what it is a part of (a subnet written inside its network), exists."""
        parents = [identity, identity.rpartition("/")[0].rpartition("/")[0]]
        return any(self._world.find(one) is not None for one in parents)

    def _user_of(self, identity: str, inside: Sequence[Record]) -> Record | None:
        own = {identity.lower(), *(found.id.lower() for found in inside)}
        for record in (found for one in sorted(own) for found in self._world.linked(one)):
            if record.id.lower() in own or any(part in record.token for part in _NEVER_IN_THE_WAY):
                continue
            if any(used.lower() in own for used in record.uses):
                return record
        return None

    def _befall(self, fault: Fault, identity: str) -> None:
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
    """Return the outputs of a create, or of an update of `old`; unknown where only the cloud has the value."""
    known = _known_outputs(cloud, described, inputs, old or Made())
    return Filler(cloud.sdk, described.folder, preview=True).fill(described.outputs, known, "")


def _known_outputs(cloud: Cloud, described: Described, inputs: Properties, old: Made) -> Properties:
    """Return the outputs that follow from the inputs, and those that an update leaves as they are (an id, a link)."""
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
