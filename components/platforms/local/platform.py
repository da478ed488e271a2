"""LocalPlatform runs a plan's machines with QEMU on this computer."""

from __future__ import annotations

import pulumi

from components.node.parameters import SharedFiles
from components.node.user_data import ADMIN_USER
from components.plan.plan import HostPlan, Role
from components.platforms.base import Host, Platform, PlatformArgs
from components.platforms.local.image import require_image
from components.platforms.local.image_build import Recipe, image_id
from components.platforms.local.machine import DATA_SERIAL
from components.platforms.local.paths import runs_folder
from components.platforms.local.power import forward, wake_command
from components.platforms.local.probe import choose
from components.platforms.local.provider import Disk, Switch, Vm, VmArgs
from components.platforms.local.rules import ssh_port
from components.platforms.local.spec import LocalSpec

_DATA_DISK_GIB = 16
"""Size of the head's data disk, which is a sparse file."""
_WORKER_NICENESS = 3
"""Niceness that halves the workers' CPU weight. Each step divides the weight by 1.25 (sched(7)). All workers wait for
services on the head, so the head has priority on computers with few cores."""


class LocalPlatform(Platform):
    """A switch and one machine per host. Each machine's sshd has its own port on 127.0.0.1."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, args, opts)
        self._args, self._spec = args, args.plan.platform_spec(LocalSpec)
        _prepare(self._spec)
        self.image = _image(self._spec)
        self._run = run = runs_folder() / pulumi.get_stack()
        self._switch = switch = Switch(f"{name}-switch", run, pulumi.ResourceOptions(parent=self))
        head = args.plan.head.name
        # The disk is in the switch's folder, which `destroy` removes last.
        below = pulumi.ResourceOptions(parent=self, depends_on=[switch])
        self._disk = Disk(f"{name}-{head}-data", run / "disks" / f"{head}.qcow2", _DATA_DISK_GIB, below)
        self.shared = SharedFiles(disk=f"/dev/disk/by-id/virtio-{DATA_SERIAL}")
        self._births = args.births(self.shared)
        self.hosts = [self._host(name, host) for host in args.plan.hosts]
        self.register_outputs({})

    def _host(self, name: str, host: HostPlan) -> Host:
        plan, is_head = self._args.plan, host.role is Role.HEAD
        birth = self._births[host.name]
        machine = VmArgs(
            host=host.name,
            folder=str(self._run),
            image=self.image,
            memory_mib=host.machine.memory_mib,
            vcpus=host.machine.vcpus,
            private_ip=f"{host.private_ip}/{plan.network.prefixlen}",
            ssh_port=ssh_port(self._spec.ssh_port_base, plan, host),
            accelerator=self._spec.accelerator,
            niceness=0 if is_head else _WORKER_NICENESS,
            user_data=birth.user_data,
            identity=birth.identity,
            switch_starts=self._switch.starts,
            data_disk=self._disk.path if is_head else "",
            forward=forward(self._run) if is_head and plan.is_elastic else None,
            elastic=True if plan.elastic(host) else None,
        )
        vm = Vm(f"{name}-{host.name}", machine, pulumi.ResourceOptions(parent=self))
        return Host(
            plan=host,
            address=vm.address,
            port=vm.ssh_port,
            user=ADMIN_USER,
            host_key=vm.host_key,
            machine_id=vm.machine_id,
            boots=vm.boots,
            data_disk=self._disk.disk_id if is_head else None,
            wake=pulumi.Output.from_input(wake_command(self._run)) if plan.elastic(host) and is_head else None,
        )


def _image(spec: LocalSpec) -> str:
    return spec.baked_image or image_id(Recipe(suite=spec.suite))


def _prepare(spec: LocalSpec) -> None:
    """Unless this is a preview, build the golden image or find the baked one, and log the accelerator.

    The provider's process would also build the image, but could not display the progress.
    """
    if pulumi.runtime.is_dry_run():
        return
    choice = choose(spec.accelerator, require_image(_image(spec)).kernel)
    kind = "with KVM" if choice.accelerator == "kvm" else "without KVM, so they are slow"
    pulumi.log.info(f"local machines run {kind}: {choice.reason}")
