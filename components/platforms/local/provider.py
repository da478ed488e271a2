"""How the engine's verbs act on machines and switches. It runs in a process of the engine, beside the program.

Every verb can be repeated: one that was cut short leaves nothing that the next could not mend.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from pulumi.dynamic import (
    CheckFailure,
    CheckResult,
    CreateResult,
    DiffResult,
    ReadResult,
    ResourceProvider,
    UpdateResult,
)

from components.errors import PlatformError
from components.platforms.local.image import GoldenImage, ensure_image, find_image
from components.platforms.local.probe import choose
from components.platforms.local.seed import Macs, macs
from components.platforms.local.sweep import sweep_run
from components.platforms.local.switch import start_switch, switch_pid
from components.platforms.local.vm import Hardware, Machine

Props = dict[str, Any]

SWITCH_OUTPUTS = ("starts", "pid", "running")
VM_OUTPUTS = ("address", "host_key", "machine_id", "boots", "pid", "running", "accelerated_by")
VM_REPLACED_BY = ("host", "folder", "image", "memory_mib", "private_ip", "user_data")
VM_RESTARTED_BY = ("vcpus", "ssh_port", "accelerator", "niceness", "switch_starts")

LOOPBACK = "127.0.0.1"
_LEAST_MEMORY_MIB = 512
_PORTS = range(1024, 65536)
_GONE = ReadResult(id_="", outs={})


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Our own errors explain themselves: the engine would print where they were raised, and the reason last."""
    try:
        yield
    except PlatformError:
        sys.tracebacklimit = 0
        raise


class SwitchProvider(ResourceProvider):
    """Input: folder. Outputs: SWITCH_OUTPUTS."""

    def create(self, props: Props) -> CreateResult:
        """Start the switch in an empty run folder: leftovers of a lost state end first."""
        run = Path(props["folder"])
        with _plain_errors():
            sweep_run(run)
            return CreateResult(id_=run.name, outs=self._started(run, 1))

    def read(self, id_: str, props: Props) -> ReadResult:
        """See whether it runs; without its folder there is no such switch any more."""
        run = Path(props["folder"])
        if not run.is_dir():
            return _GONE
        return ReadResult(id_=id_, outs={**props, "running": switch_pid(run) is not None})

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        """Another folder is another switch; one that is off is started again."""
        moved = ["folder"] if olds["folder"] != news["folder"] else []
        return DiffResult(
            changes=bool(moved) or not olds.get("running"), replaces=moved, delete_before_replace=bool(moved)
        )

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        """Start it again."""
        with _plain_errors():
            return UpdateResult(outs=self._started(Path(news["folder"]), int(olds["starts"]) + 1))

    def delete(self, _id: str, props: Props) -> None:
        """Leave nothing of the run: machines that no state knows, the switch, the folder."""
        sweep_run(Path(props["folder"]))

    def _started(self, run: Path, starts: int) -> Props:
        pid = switch_pid(run) or start_switch(run)
        return {"folder": str(run), "starts": starts, "pid": pid, "running": True}


class VmProvider(ResourceProvider):
    """Inputs: the fields of VmArgs. Outputs: VM_OUTPUTS beside them."""

    def check(self, _olds: Props, news: Props) -> CheckResult:
        """Refuse what QEMU would refuse later, or worse, accept."""
        failures = []
        if int(news["memory_mib"]) < _LEAST_MEMORY_MIB:
            failures.append(CheckFailure("memory_mib", f"must be at least {_LEAST_MEMORY_MIB}"))
        if int(news["vcpus"]) < 1:
            failures.append(CheckFailure("vcpus", "must be at least 1"))
        if int(news["ssh_port"]) not in _PORTS:
            failures.append(CheckFailure("ssh_port", f"must be between {_PORTS.start} and {_PORTS.stop - 1}"))
        if news["accelerator"] not in ("auto", "kvm", "tcg"):
            failures.append(CheckFailure("accelerator", "must be auto, kvm or tcg"))
        return CheckResult(news, failures)

    def diff(self, _id: str, olds: Props, news: Props) -> DiffResult:
        """Tell a new machine from a new start of the same one."""
        replaces = [key for key in VM_REPLACED_BY if olds.get(key) != news.get(key)]
        restarts = [key for key in VM_RESTARTED_BY if olds.get(key) != news.get(key)]
        changes = bool(replaces or restarts) or not olds.get("running")
        return DiffResult(changes=changes, replaces=replaces, delete_before_replace=True)

    def create(self, props: Props) -> CreateResult:
        """Make a machine with a fresh disk and start it. A leftover of the same name is removed first."""
        with _plain_errors():
            machine, image = _machine(props), ensure_image()
            machine_id = uuid.uuid4().hex
            machine.make_disk(image, machine_id, _cards(props), IPv4Interface(props["private_ip"]), props["user_data"])
            try:
                outs = _started(machine, image, props, machine_id, boots=1)
            except BaseException:
                # The engine keeps no record of a machine whose create failed, so only its console may stay.
                machine.power_off()
                raise
            return CreateResult(id_=f"{machine.run.name}/{machine.name}", outs=outs)

    def read(self, id_: str, props: Props) -> ReadResult:
        """See whether it runs; without its disk, or the image below it, there is no such machine any more."""
        machine = _machine(props)
        if not machine.disk.exists() or find_image(props["image"]) is None:
            return _GONE
        return ReadResult(id_=id_, outs={**props, "running": machine.pid is not None})

    def update(self, _id: str, olds: Props, news: Props) -> UpdateResult:
        """Start it again on the same disk."""
        with _plain_errors():
            machine, image = _machine(news), find_image(news["image"])
            if image is None:
                raise PlatformError(
                    f"{machine.name}: its golden image {news['image']} is no longer in the cache. "
                    "Fix: run `pulumi refresh`, then `pulumi up` makes the machine anew"
                )
            machine.shut_down()
            return UpdateResult(outs=_started(machine, image, news, olds["machine_id"], int(olds["boots"]) + 1))

    def delete(self, _id: str, props: Props) -> None:
        """Leave nothing of the machine; one that is gone already is fine."""
        _machine(props).remove()


def _machine(props: Props) -> Machine:
    return Machine(run=Path(props["folder"]), name=props["host"])


def _started(machine: Machine, image: GoldenImage, props: Props, machine_id: str, boots: int) -> Props:
    choice = choose(props["accelerator"], image.kernel)
    hardware = Hardware(
        accelerator=choice.accelerator,
        vcpus=int(props["vcpus"]),
        memory_mib=int(props["memory_mib"]),
        ssh_port=int(props["ssh_port"]),
        niceness=int(props["niceness"]),
    )
    since = machine.console_size()
    machine.start(image, hardware, _cards(props))
    host_key = machine.wait_host_key(since)
    return {
        **{key: props[key] for key in (*VM_REPLACED_BY, *VM_RESTARTED_BY)},
        "address": LOOPBACK,
        "host_key": host_key,
        "machine_id": machine_id,
        "boots": boots,
        "pid": machine.pid,
        "running": True,
        "accelerated_by": choice.accelerator,
    }


def _cards(props: Props) -> Macs:
    return macs(Path(props["folder"]).name, props["host"])
