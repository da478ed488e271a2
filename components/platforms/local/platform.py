"""LocalPlatform: a plan's machines as QEMU machines on this host."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import pulumi

from components.cloud_init import SharedFiles
from components.plan import HostPlan, Role
from components.platforms.base import Host, Platform, PlatformArgs, Render
from components.platforms.local.fit import ssh_port
from components.platforms.local.image import ensure_image, image_id
from components.platforms.local.paths import runs_folder
from components.platforms.local.probe import choose
from components.platforms.local.resources import Switch, Vm, VmArgs
from components.platforms.local.spec import Spec

ADMIN_USER = "ops"
_WORKER_NICENESS = 3
"""Half the weight of the head's (sched(7): a factor of 1.25 a step). On fewer cores than machines, every worker waits
for what the head serves, and the head must not wait for what the workers compute."""


class LocalPlatform(Platform):
    """A switch and one machine per host; sshd of each on a loopback port of its own."""

    user_data_limit: ClassVar[int] = 1 << 20
    """The seed is a disk and takes any size; this is for the Pulumi state, which holds it once per machine."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(name, args, opts)
        if not isinstance(args.spec, Spec):
            raise TypeError(f"the local platform cannot take a {type(args.spec).__name__}")
        _announce(args.spec)
        run = runs_folder() / pulumi.get_stack()
        switch = Switch(f"{name}-switch", run, pulumi.ResourceOptions(parent=self))
        image = image_id()
        user_data = args.user_data(SharedFiles())
        self.hosts = hosts = list[Host]()
        for host in args.plan.hosts:
            machine = VmArgs(
                host=host.name,
                folder=str(run),
                image=image,
                memory_mib=host.machine.memory_mib,
                vcpus=host.machine.vcpus,
                private_ip=f"{host.private_ip}/{args.plan.network.prefixlen}",
                ssh_port=ssh_port(args.spec.ssh_port_base, args.plan, host),
                accelerator=args.spec.accelerator,
                niceness=0 if host.role is Role.HEAD else _WORKER_NICENESS,
                user_data=user_data.apply(partial(_rendered, host)),
                switch_starts=switch.starts,
            )
            hosts.append(_host(host, Vm(f"{name}-{host.name}", machine, pulumi.ResourceOptions(parent=self))))
        self.register_outputs({})


def _rendered(host: HostPlan, render: Render) -> str:
    return render(host)


def _announce(spec: Spec) -> None:
    """Say how machines will run, and build the image first: here people see how far it is. Not in a preview."""
    if pulumi.runtime.is_dry_run():
        return
    choice = choose(spec.accelerator, ensure_image().kernel)
    pulumi.log.info(f"local machines run with {choice.accelerator}: {choice.reason}")


def _host(plan: HostPlan, vm: Vm) -> Host:
    return Host(
        plan=plan,
        address=vm.address,
        port=vm.ssh_port,
        user=ADMIN_USER,
        host_key=vm.host_key,
        machine_id=vm.machine_id,
        boots=vm.boots,
    )
