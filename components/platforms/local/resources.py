"""The local platform's Pulumi resources: Switch (a stack's network) and Vm (a machine with a whole life).

Only what a machine is made of is an input; no secret ever is. Their providers are in provider.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pulumi
from pulumi.dynamic import Resource

from components.platforms.local.provider import SWITCH_OUTPUTS, VM_OUTPUTS, SwitchProvider, VmProvider


class Switch(Resource, module="local", name="Switch"):
    """The private network of one stack: its run folder and the switch in it."""

    folder: pulumi.Output[str]
    starts: pulumi.Output[int]
    """How often the switch was started; machines must be started again to plug into a new one."""
    running: pulumi.Output[bool]

    def __init__(self, name: str, run: Path, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(SwitchProvider(), name, {"folder": str(run), **dict.fromkeys(SWITCH_OUTPUTS)}, opts)


@dataclass(frozen=True, kw_only=True)
class VmArgs:
    """A machine. Plain values are known when the program runs; `private_ip` has its prefix: "10.77.0.4/20"."""

    host: str
    folder: str
    """The stack's run folder."""
    image: str
    """Identity of the golden image."""
    memory_mib: int
    vcpus: int
    private_ip: str
    ssh_port: int
    accelerator: str
    """auto, kvm or tcg."""
    niceness: int
    user_data: pulumi.Input[str]
    switch_starts: pulumi.Input[int]


class Vm(Resource, module="local", name="Vm"):
    """A QEMU machine. It outlives the program that started it.

    A change of its processors, port or accelerator, or a machine that is off, is mended by a start on the same disk;
    any other change makes a new machine.
    """

    address: pulumi.Output[str]
    ssh_port: pulumi.Output[int]
    host_key: pulumi.Output[str]
    """As its console told it: "ssh-ed25519 AAAA..."."""
    machine_id: pulumi.Output[str]
    """New with every fresh disk."""
    boots: pulumi.Output[int]
    pid: pulumi.Output[int]
    running: pulumi.Output[bool]
    accelerated_by: pulumi.Output[str]
    """kvm or tcg."""

    def __init__(self, name: str, args: VmArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(VmProvider(), name, {**_shallow(args), **dict.fromkeys(VM_OUTPUTS)}, opts)


def _shallow(args: VmArgs) -> dict[str, object]:
    return {field: getattr(args, field) for field in VmArgs.__dataclass_fields__}
