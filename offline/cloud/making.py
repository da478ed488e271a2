"""Create, read, update and delete resources in a simulated cloud, according to the real cloud's rules."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from offline.boot.machine import disk_file, hypervisor, is_wanted
from offline.cloud.cloud import AddressRequest, Cloud, refused_address
from offline.cloud.faults import EVICTED, NOTICE, Fault, booted, changed_outside, stockout_message, strikes
from offline.cloud.outputs import Filler, kept_outputs
from offline.cloud.rules import covered
from offline.cloud.sdk import Described
from offline.cloud.world import Record, World, with_secrets, without_secrets
from offline.protocol import Operation, ResourceError
from offline.values import Properties, Value, changes, reveal

_STATUS = frozenset({"currentStatus", EVICTED, NOTICE})
"""Outputs that disappear when a stopped machine is started."""


@dataclass(frozen=True)
class Made:
    """A resource's properties in the engine's state."""

    inputs: Properties = field(default_factory=dict)
    outputs: Properties = field(default_factory=dict)


class Maker:
    """Performs an operation on a resource."""

    def __init__(self, cloud: Cloud, world: World, described: Described, operation: Operation) -> None:
        self._cloud = cloud
        self._world = world
        self._described = described
        self._operation = operation
        self._rule = cloud.rules.of(described.token)

    def create(self, inputs: Properties, *, may_adopt: bool) -> tuple[str, Properties]:
        """Create the resource and return its ID and outputs.

        If `may_adopt` is set, a resource that a killed run created from the same inputs is adopted.
        """
        plain = _plain(inputs)
        _refuse(self._cloud.refused_location(plain))
        identity = self._cloud.identity(self._described, plain)
        record = replace(self._record(identity, inputs), made_by=os.getpid())
        met = self._meet_faults("create", plain)
        with self._world.locked():
            self._refuse_existing(record, may_adopt)
            self._refuse_invalid(record)
            self._world.put(record)
        self._wait_for(met)
        return identity, self._finish(identity, inputs)

    def read(self, identity: str, known: Made) -> Made | None:
        """Return the resource, or None if it does not exist. Its secrets come from `known`, the engine's state."""
        for fault in strikes(self._world, "read", self._described.token, self._operation.name):
            if found := self._world.find(identity):
                states = changed_outside(fault, found)
                for state in states:
                    self._put(state)
                if not states:
                    self._remove(identity)
                self._filter(found)
        record = self._world.find(identity)
        if record is None:
            return None
        return Made(with_secrets(record.inputs, known.inputs), with_secrets(record.outputs, known.outputs))

    def update(self, identity: str, inputs: Properties, old: Made) -> Properties:
        """Update the resource and return its outputs. Raises ResourceError if the cloud refuses the change."""
        plain = _plain(inputs)
        changed = [*changes(old.inputs, inputs)]
        for path in changed:
            if covered(path, self._rule.refuse):
                raise ResourceError(self._cloud.refused_change(path))
        stopped = next((path for path in changed if covered(path, self._rule.stop)), None)
        if stopped is not None and not plain.get("allowStoppingForUpdate"):
            raise ResourceError(
                f"Changing the {stopped} on a started instance requires stopping it. Fix: set "
                "allow_stopping_for_update=True, or have the resource replaced"
            )
        restarts = stopped is not None or any(covered(path, self._rule.start) for path in changed)
        return self.change(identity, inputs, old, runs=True if restarts else None)

    def change(self, identity: str, inputs: Properties, old: Made, *, runs: bool | None = None) -> Properties:
        """Update the resource and return its outputs. `runs` is set if the update starts or stops a machine."""
        met = self._meet_faults("update", _plain(inputs))
        with self._world.locked():
            record = self._world.find(identity)
            if record is None:
                raise ResourceError(
                    f"404 NotFound: {identity} does not exist. Fix: run `pulumi refresh`, then `pulumi up`"
                )
            self._refuse_invalid(self._record(identity, inputs))
        self._wait_for(met)
        outputs = with_secrets(record.outputs, old.outputs)
        if runs is not None:
            outputs = {name: value for name, value in outputs.items() if name not in _STATUS}
        if runs is False:
            outputs["currentStatus"] = "TERMINATED"
        return self._finish(identity, inputs, Made(old.inputs, outputs))

    def delete(self, identity: str) -> None:
        """Delete the resource if it exists. Raises ResourceError if another resource uses it."""
        record = self._world.find(identity)
        if record is None:
            return
        self._wait_for(self._meet_faults("delete", _plain(record.inputs)))
        with self._world.locked():
            _refuse(self._cloud.refused_now(record, self._world))
            user = None if self._rule.holds_all else self._user_of(identity)
            if user:
                adopt = "an interrupted run left it behind; run `pulumi up`, which adopts it, then `pulumi destroy`"
                fix = adopt if user.made_by else "delete that first"
                raise ResourceError(f"409 InUse: {identity} is used by {user.id}. Fix: {fix}")
            self._remove(identity)
        self._filter(record)

    def _inside(self, identity: str) -> list[Record]:
        start = f"{identity.lower()}/"
        return [found for found in self._world.linked(identity) if found.id.lower().startswith(start)]

    def _put(self, record: Record) -> None:
        """Store a complete resource. If it is a virtual machine and machines are booted, start or stop the machine."""
        self._world.put(record)
        if is_wanted() and (machine := self._cloud.machine(record, self._world)):
            met = strikes(self._world, "boot", record.token, machine.name)
            hypervisor(self._world.folder).apply(booted(machine, met))

    def _filter(self, changed: Record) -> None:
        """Apply the firewall rules of all booted machines after a change to a rule, a machine or another resource."""
        if not is_wanted() or changed.token not in self._cloud.filters:
            return
        with self._world.locked():
            for record in self._world.records():
                if not record.made_by and (machine := self._cloud.machine(record, self._world)):
                    hypervisor(self._world.folder).filter(machine)

    def _remove(self, identity: str) -> None:
        record = self._world.find(identity)
        machine = self._cloud.machine(record, self._world) if record and is_wanted() else None
        if machine and machine.resource == identity:
            hypervisor(self._world.folder).remove(machine.name)
        disk_file(self._world.folder, identity).unlink(missing_ok=True)
        for found in self._inside(identity):
            self._world.remove(found.id)
        self._world.remove(identity)

    def _finish(self, identity: str, inputs: Properties, old: Made | None = None) -> Properties:
        filler = Filler(self._cloud.sdk, self._described.folder, preview=False)
        known = _known_outputs(self._cloud, self._described, inputs, old or Made())
        own = self._cloud.computed(self._described, identity, known)
        outputs = filler.fill(self._described.outputs, own, self._world.seed(identity))
        record = replace(self._record(identity, inputs), outputs=outputs)
        self._put(record)
        self._filter(record)
        return outputs

    def _record(self, identity: str, inputs: Properties) -> Record:
        """Return this resource's record, but without outputs."""
        plain, token = _plain(inputs), self._described.token
        uses = tuple(needed for text in _texts(plain) if (needed := self._cloud.refers(text)))
        claims = tuple(map(self._claim, self._cloud.requested_addresses(token, plain)))
        return Record(identity, token, self._operation.urn, inputs, {}, uses=uses, claims=claims)

    def _claim(self, request: AddressRequest) -> str:
        return f"{self._cloud.refers(request.subnet)}#{request.address}"

    def _meet_faults(self, operation: str, plain: Properties) -> list[Fault]:
        """Return the faults that occur during the operation. Raises ResourceError if the cloud has no capacity."""
        met = strikes(self._world, operation, self._described.token, self._operation.name)
        if any(fault.fault == "stockout" for fault in met):
            raise ResourceError(stockout_message(self._cloud.package, self._operation.name, plain))
        return met

    def _wait_for(self, met: Sequence[Fault]) -> None:
        for fault in met:
            if fault.fault == "slow":
                self._operation.stop.pause(fault.seconds)

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

    def _refuse_invalid(self, record: Record) -> None:
        """Raise ResourceError if the cloud refuses the resource, one of its references or one of its addresses."""
        for needed in record.uses:
            # A subnet can be declared in its network's inputs, so it is enough that its parent exists.
            parents = (needed, needed.rpartition("/")[0].rpartition("/")[0])
            if not any(self._world.find(one) for one in parents):
                raise ResourceError(f"404 NotFound: {needed} does not exist. Fix: create it, or correct the reference")
        _refuse(self._cloud.refused_now(record, self._world))
        for request in self._cloud.requested_addresses(record.token, _plain(record.inputs)):
            subnet = self._world.find(self._cloud.refers(request.subnet))
            ranges = self._cloud.ranges(subnet.inputs) if subnet else ()
            taken = any(found.id != record.id for found in self._world.linked(self._claim(request)))
            if refused := refused_address(request.address, ranges, self._cloud.reserved_addresses, taken=taken):
                raise ResourceError(f"400 InvalidAddress: {record.id}: {refused}")

    def _user_of(self, identity: str) -> Record | None:
        """Return a resource that uses this resource or a resource inside it, or None if there is none."""
        own = {identity.lower(), *(found.id.lower() for found in self._inside(identity))}
        for record in (found for one in sorted(own) for found in self._world.linked(one)):
            if record.id.lower() not in own and any(used.lower() in own for used in record.uses):
                return record
        return None


def preview_outputs(cloud: Cloud, described: Described, inputs: Properties, old: Made | None = None) -> Properties:
    """Return a preview's outputs for a creation, or for an update of `old`. The cloud's own values are unknown."""
    known = _known_outputs(cloud, described, inputs, old or Made())
    return Filler(cloud.sdk, described.folder, preview=True).fill(described.outputs, known, "")


def is_running(process: int) -> bool:
    """Return whether a process with this ID is running. A zombie does not count, although signal 0 succeeds for it.

    If the machine's init process is slow, a zombie can exist for seconds. Source: proc_pid_stat(5), field 3 (state).
    """
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    # Fields are counted from the last parenthesis, because the command name in field 2 may contain spaces.
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _refuse(reason: str) -> None:
    if reason:
        raise ResourceError(reason)


def _known_outputs(cloud: Cloud, described: Described, inputs: Properties, old: Made) -> Properties:
    """Return the outputs that follow from the inputs, and those that an update keeps (an ID, a link)."""
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
