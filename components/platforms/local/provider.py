"""Dynamic providers for switches, disks and machines, which run in a process that the Pulumi engine starts.

Every operation can be repeated after an interruption.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, ResourceProvider, UpdateResult

from components.platforms.local.image import GoldenImage, find_image, hold_image, require_image
from components.platforms.local.machine import Hardware, Machine, macs, make_data_disk, start_switch, switch_pid
from components.platforms.local.probe import choose
from components.platforms.local.process import sweep_run
from trainyard.errors import PlatformError

Props = dict[str, Any]

VM_OUTPUTS = ("address", "host_key", "machine_id", "boots", "pid", "running", "accelerated_by")
VM_REPLACED_BY = ("host", "folder", "memory_mib", "private_ip", "identity")
VM_BIRTH = ("image", "user_data")
"""Inputs that matter only when a machine is created. A change to these inputs has no effect on an existing machine."""
VM_RESTARTED_BY = ("vcpus", "ssh_port", "accelerator", "niceness", "switch_starts", "data_disk", "forward")
VM_CHANGED_BY = ("elastic",)
"""Inputs whose changes do not affect the machine itself."""

_GONE = ReadResult(id_="", outs={})


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Omit a PlatformError's traceback, which the engine would print before the message."""
    try:
        yield
    except PlatformError:
        sys.tracebacklimit = 0
        raise


class SwitchProvider(ResourceProvider):
    """Provider for the switch. Input: folder. Additional outputs: starts, pid and running."""

    def create(self, props: Props) -> CreateResult:
        """Remove the processes and files of an earlier run in this folder, and start the switch."""
        run = Path(props["folder"])
        with _plain_errors():
            sweep_run(run)
            return CreateResult(id_=run.name, outs=self._started(run, 1))

    def read(self, id_: str, props: Props) -> ReadResult:
        """Return the current state, or no resource if the folder is missing."""
        run = Path(props["folder"])
        if not run.is_dir():
            return _GONE
        return ReadResult(id_=id_, outs={**props, "running": switch_pid(run) is not None})

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        """Replace the switch if its folder changes, and update it if it is not running."""
        replaces = _changed(("folder",), olds, news)
        changes = bool(replaces) or not olds.get("running")
        return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        with _plain_errors():
            return UpdateResult(outs=self._started(Path(news["folder"]), int(olds["starts"]) + 1))

    def delete(self, _id: str, props: Props) -> None:
        sweep_run(Path(props["folder"]))

    def _started(self, run: Path, starts: int) -> Props:
        pid = switch_pid(run) or start_switch(run)
        return {"folder": str(run), "starts": starts, "pid": pid, "running": True}


class DiskProvider(ResourceProvider):
    """Provider for the data disk. Inputs: path and gib. Additional output: disk_id."""

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        """Replace the disk with an empty one if its path or size changes."""
        replaces = _changed(("path", "gib"), olds, news)
        return DiffResult(changes=bool(replaces), replaces=replaces, delete_before_replace=True)

    def create(self, props: Props) -> CreateResult:
        with _plain_errors():
            make_data_disk(Path(props["path"]), int(props["gib"]))
        disk_id = uuid.uuid4().hex
        return CreateResult(id_=disk_id, outs={**props, "disk_id": disk_id})

    def read(self, id_: str, props: Props) -> ReadResult:
        return ReadResult(id_=id_, outs=props) if Path(props["path"]).exists() else _GONE

    def delete(self, _id: str, props: Props) -> None:
        Path(props["path"]).unlink(missing_ok=True)


class VmProvider(ResourceProvider):
    """Provider for machines. Inputs: the fields of VmArgs. Additional outputs: VM_OUTPUTS."""

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        """Replace the machine if an input in VM_REPLACED_BY changes.

        Update the machine if an input in VM_RESTARTED_BY or VM_CHANGED_BY changes or the machine is off. The machine of
        an elastic node may be off, because the head starts and stops it.
        """
        replaces, updates = (
            _changed(VM_REPLACED_BY, olds, news),
            _changed((*VM_RESTARTED_BY, *VM_CHANGED_BY), olds, news),
        )
        changes = bool(replaces or updates) or not (olds.get("running") or news.get("elastic"))
        return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)

    def create(self, props: Props) -> CreateResult:
        """Create a machine with an empty disk, and start it. An existing machine with this name is removed first."""
        with _plain_errors():
            machine, image = _machine(props), require_image(props["image"])
            machine_id, cards = uuid.uuid4().hex, macs(machine.run.name, machine.name)
            hold_image(image, machine.disk)
            machine.make_disk(image, machine_id, cards, IPv4Interface(props["private_ip"]), props["user_data"])
            try:
                outs = _started(machine, image, props, machine_id, boots=1)
            except BaseException:
                # The engine does not record a machine that could not be created, so nothing else would end its process.
                machine.power_off()
                raise
            return CreateResult(id_=f"{machine.run.name}/{machine.name}", outs=outs)

    def read(self, id_: str, props: Props) -> ReadResult:
        """Return the current state, or no resource if the machine's disk or its image is missing."""
        machine = _machine(props)
        if not machine.disk.exists() or find_image(props["image"]) is None:
            return _GONE
        return ReadResult(id_=id_, outs={**props, "running": machine.pid is not None})

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        """Restart the machine with the same disk, and therefore the same image and user-data.

        The machine of an elastic node stays off if it is off. Its next start uses the new inputs.
        """
        with _plain_errors():
            machine, image = _machine(news), find_image(olds["image"])
            if image is None:
                raise PlatformError(
                    f"{machine.name}: its golden image {olds['image']} is no longer in the cache. "
                    "Fix: run `pulumi refresh` and then `pulumi up`, which creates the machine again"
                )
            props = {**news, **{key: olds[key] for key in VM_BIRTH}}
            is_running = machine.pid is not None
            if news.get("elastic") and not is_running:
                machine.store_command(image, _hardware(props, image), macs(machine.run.name, machine.name))
                return UpdateResult(outs={**olds, **_inputs(props), "running": False})
            if is_running and not _changed(VM_RESTARTED_BY, olds, news):
                return UpdateResult(outs={**olds, **_inputs(props), "running": True})
            machine.shut_down()
            return UpdateResult(outs=_started(machine, image, props, olds["machine_id"], int(olds["boots"]) + 1))

    def delete(self, _id: str, props: Props) -> None:
        _machine(props).remove()


def _changed(keys: tuple[str, ...], olds: Props, news: Props) -> list[str]:
    return [key for key in keys if olds.get(key) != news.get(key)]


def _machine(props: Props) -> Machine:
    return Machine(run=Path(props["folder"]), name=props["host"])


def _inputs(props: Props) -> Props:
    names = (*VM_REPLACED_BY, *VM_RESTARTED_BY, *VM_CHANGED_BY, *VM_BIRTH)
    return {name: props[name] for name in names if name in props}


def _hardware(props: Props, image: GoldenImage) -> Hardware:
    return Hardware(
        accelerator=choose(props["accelerator"], image.kernel).accelerator,
        vcpus=int(props["vcpus"]),
        memory_mib=int(props["memory_mib"]),
        ssh_port=int(props["ssh_port"]),
        niceness=int(props["niceness"]),
        data_disk=Path(props["data_disk"]) if props.get("data_disk") else None,
        forward=props.get("forward"),
    )


def _started(machine: Machine, image: GoldenImage, props: Props, machine_id: str, boots: int) -> Props:
    hardware = _hardware(props, image)
    since = machine.console_size()
    machine.start(image, hardware, macs(machine.run.name, machine.name))
    host_key = machine.wait_host_key(since)
    if hardware.data_disk and hardware.ssh_port:
        # The next resources log in to the head, which is the only machine with a data disk.
        machine.wait_ssh(hardware.ssh_port)
    return {
        **_inputs(props),
        "address": "127.0.0.1",
        "host_key": host_key,
        "machine_id": machine_id,
        "boots": boots,
        "pid": machine.pid,
        "running": True,
        "accelerated_by": hardware.accelerator,
    }


class Switch(Resource, module="local", name="Switch"):
    """A stack's private network: the switch and its run folder."""

    starts: pulumi.Output[int]
    """Number of times that the switch has started. After a change, machines restart to connect to the new switch."""

    def __init__(self, name: str, run: Path, opts: pulumi.ResourceOptions) -> None:
        inputs = {"folder": str(run), "starts": None, "pid": None, "running": None}
        super().__init__(SwitchProvider(), name, inputs, opts)


class Disk(Resource, module="local", name="Disk"):
    """The head's data disk, which remains if the head's machine is replaced."""

    path: pulumi.Output[str]
    disk_id: pulumi.Output[str]
    """Id that changes with each new disk."""

    def __init__(self, name: str, path: Path, gib: int, opts: pulumi.ResourceOptions) -> None:
        inputs = {"path": str(path), "gib": gib, "disk_id": None}
        super().__init__(DiskProvider(), name, inputs, _delete_first(opts))


@dataclass(frozen=True, kw_only=True)
class VmArgs:
    """Arguments for a machine."""

    host: str
    folder: str
    """The stack's run folder."""
    image: str
    """The golden image's id, or the baked image's name."""
    memory_mib: int
    vcpus: int
    private_ip: str
    """The address with its prefix length, for example 10.77.0.4/20."""
    ssh_port: int
    accelerator: str
    """auto, kvm or tcg."""
    niceness: int
    user_data: pulumi.Input[str]
    identity: pulumi.Input[str]
    """Digest of the values in user-data that cannot change on an existing machine."""
    switch_starts: pulumi.Input[int]
    data_disk: pulumi.Input[str]
    """The data disk's path, or "" if the machine has none."""
    forward: str | None = None
    """For the head of a cluster with elastic nodes: the option with which it starts and stops machines (power.py)."""
    elastic: bool | None = None
    """True if the head starts and stops the machine."""


class Vm(Resource, module="local", name="Vm"):
    """A QEMU machine, which keeps running after the Pulumi program has ended.

    `up` replaces the machine if an input in VM_REPLACED_BY changes. If an input in VM_RESTARTED_BY changes or the
    machine is off, `up` starts it again with the same disk. A change to an input in VM_BIRTH has no effect.
    """

    address: pulumi.Output[str]
    ssh_port: pulumi.Output[int]
    host_key: pulumi.Output[str]
    """SSH host key ("ssh-ed25519 AAAA...") from the console."""
    machine_id: pulumi.Output[str]
    """Id that changes with each new root disk."""
    boots: pulumi.Output[int]

    def __init__(self, name: str, args: VmArgs, opts: pulumi.ResourceOptions) -> None:
        # Without the optional inputs, a machine of an older version does not differ from its state.
        inputs = {key: value for key, value in vars(args).items() if value is not None}
        super().__init__(VmProvider(), name, {**inputs, **dict.fromkeys(VM_OUTPUTS)}, _delete_first(opts))


def _delete_first(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """Return options that delete a resource before its replacement is created, because both have the same path.

    The provider's `diff` sets the same option, but `pulumi up --replace` does not call `diff`.
    """
    merged: pulumi.ResourceOptions = pulumi.ResourceOptions.merge(
        opts, pulumi.ResourceOptions(delete_before_replace=True)
    )
    return merged
