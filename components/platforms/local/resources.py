"""The Pulumi resources of the local platform. Their providers are in provider.py. Inputs never contain secrets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pulumi
from pulumi.dynamic import Resource

from components.platforms.local.provider import (
    DISK_OUTPUTS,
    SWITCH_OUTPUTS,
    VM_OUTPUTS,
    DiskProvider,
    SwitchProvider,
    VmProvider,
)


class Switch(Resource, module="local", name="Switch"):
    """The private network of a stack: its run folder and the switch."""

    starts: pulumi.Output[int]
    """Number of times that the switch has started. Machines restart if this number changes, because they must connect
    to the new switch."""

    def __init__(self, name: str, run: Path, opts: pulumi.ResourceOptions) -> None:
        super().__init__(SwitchProvider(), name, {"folder": str(run), **dict.fromkeys(SWITCH_OUTPUTS)}, opts)


class Disk(Resource, module="local", name="Disk"):
    """The head's data disk. The disk remains if the head's machine is replaced."""

    path: pulumi.Output[str]
    disk_id: pulumi.Output[str]
    """Id that changes with each new disk."""

    def __init__(self, name: str, path: Path, gib: int, opts: pulumi.ResourceOptions) -> None:
        inputs = {"path": str(path), "gib": gib}
        super().__init__(DiskProvider(), name, {**inputs, **dict.fromkeys(DISK_OUTPUTS)}, _delete_first(opts))


@dataclass(frozen=True, kw_only=True)
class VmArgs:
    """Arguments for a machine. `private_ip` has a prefix length: "10.77.0.4/20"."""

    host: str
    folder: str
    """The stack's run folder."""
    image: str
    """Id of the golden image."""
    memory_mib: int
    vcpus: int
    private_ip: str
    ssh_port: int
    accelerator: str
    """auto, kvm or tcg."""
    niceness: int
    user_data: pulumi.Input[str]
    identity: pulumi.Input[str]
    """Digest of the values in user-data that cannot change on an existing machine."""
    is_rolled: bool
    """Whether changed user-data or a changed image replaces the machine."""
    switch_starts: pulumi.Input[int]
    data_disk: pulumi.Input[str]
    """Path of the data disk, or "" if the machine has none."""


class Vm(Resource, module="local", name="Vm"):
    """A QEMU machine, which continues to run after the Pulumi program has ended.

    A change to an input in VM_RESTARTED_BY restarts the machine with the same disk. `up` also restarts a machine that
    is off. A change to an input in VM_REPLACED_BY replaces the machine. A change to an input in VM_BIRTH replaces the
    machine only if `is_rolled` is set.
    """

    address: pulumi.Output[str]
    ssh_port: pulumi.Output[int]
    host_key: pulumi.Output[str]
    """SSH host key from the console: "ssh-ed25519 AAAA..."."""
    machine_id: pulumi.Output[str]
    """Id that changes with each new root disk."""
    boots: pulumi.Output[int]
    image: pulumi.Output[str]
    """Id of the golden image below the machine's disk."""

    def __init__(self, name: str, args: VmArgs, opts: pulumi.ResourceOptions) -> None:
        super().__init__(VmProvider(), name, {**vars(args), **dict.fromkeys(VM_OUTPUTS)}, _delete_first(opts))


def _delete_first(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """Return options that delete a resource before its replacement is created, because both have the same path.

    The provider's diff also sets this option, but `pulumi up --replace` does not call the diff.
    """
    merged: pulumi.ResourceOptions = pulumi.ResourceOptions.merge(
        opts, pulumi.ResourceOptions(delete_before_replace=True)
    )
    return merged
