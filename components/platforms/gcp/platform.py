"""GcpPlatform creates a plan's machines in Compute Engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pulumi
import pulumi_gcp
from pulumi_gcp import serviceaccount

from components.node.parameters import SharedFiles
from components.plan.plan import GROUP_BLOCKS, HostPlan
from components.platforms.base import Platform, PlatformArgs, cloud_hosts
from components.platforms.gcp.facts import PROGRAM
from components.platforms.gcp.layout import NetworkLayout, cards, networks
from components.platforms.gcp.network import IAP_RANGE, Network, NetworkArgs
from components.platforms.gcp.nodes import (
    Capacity,
    Head,
    HeadArgs,
    MachineType,
    NodeArgs,
    NodeGroup,
    NodeGroupArgs,
    Placement,
    PlacementArgs,
    host_key,
    image_of,
)
from components.platforms.gcp.power import Power
from components.platforms.gcp.spec import GcpSpec
from components.platforms.gcp.storage import SharedStorage, SharedStorageArgs


def own_options(
    name: str, spec: GcpSpec, labels: Mapping[str, str], parent: pulumi.Resource | None = None
) -> pulumi.ResourceOptions:
    """Return options that give a component its own provider. The default provider would use the shell's project."""
    provider = pulumi_gcp.Provider(
        f"{name}-provider",
        project=spec.project,
        region=spec.region,
        zone=spec.zone,
        default_labels=labels,
        opts=pulumi.ResourceOptions(parent=parent),
    )
    return pulumi.ResourceOptions(providers=[provider])


def interfaces(
    layout: Sequence[NetworkLayout], network: Network, host: HostPlan
) -> Sequence[tuple[str, pulumi.Input[str], str]]:
    """Return a host's network interfaces for `NodeArgs.cards`."""
    return [(card.kind.value, network.subnets[card.subnet], str(card.address)) for card in cards(layout, host)]


def tunnel_command(machine: pulumi.Output[str], zone: str, project: str) -> pulumi.Output[Sequence[str]]:
    """Return the command, in which "{port}" stands for the local port. `machine` is the instance's name.

    For the command's options, see Google, "gcloud compute start-iap-tunnel" (read 2026-11-22). The command tests a
    connection before it listens, and exits with code 1 if the machine does not respond (google-cloud-sdk@01f043c:
    lib/googlecloudsdk/command_lib/compute/iap_tunnel.py, _TestConnection).
    """
    return machine.apply(
        lambda name: (
            PROGRAM,
            *("compute", "start-iap-tunnel", name, "22", "--local-host-port=127.0.0.1:{port}"),
            *(f"--zone={zone}", f"--project={project}"),
        )
    )


def wake_command(machine: pulumi.Output[str], zone: str, project: str) -> pulumi.Output[Sequence[str]]:
    """Return the command that starts a stopped machine (Google, "gcloud compute instances start", read 2026-11-27)."""
    return machine.apply(
        lambda name: (PROGRAM, "compute", "instances", "start", name, f"--zone={zone}", f"--project={project}")
    )


def node_account(name: str, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """Declare a service account without roles for a cluster's machines, and return its email.

    The project's default account would have the Editor role. Stage 45-transport needs an account, because Artifact
    Registry answers only to Google accounts.
    """
    return serviceaccount.Account(
        f"{name}-nodes",
        account_id=f"{name}-nodes",
        display_name=f"Machines of the Trainyard cluster {name}",
        opts=opts,
    ).email


class GcpPlatform(Platform):
    """Networks with Cloud NAT, the shared storage, the head, and the node groups with their placements."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        plan, spec = args.plan, args.plan.platform_spec(GcpSpec)
        self._plan, self._spec = plan, spec
        own = own_options(name, spec, {"trainyard-cluster": plan.name}, opts.parent if opts else None)
        super().__init__(name, args, pulumi.ResourceOptions.merge(opts, own))
        self._child = pulumi.ResourceOptions(parent=self)
        self._layout = networks(plan)
        ssh_from = [IAP_RANGE] if plan.access.via == "bastion" else [str(cidr) for cidr in plan.access.allow_ssh_from]
        self._network = Network(
            f"{plan.name}-networks",
            NetworkArgs(project=spec.project, region=spec.region, layout=self._layout, ssh_from=ssh_from),
            self._child,
        )
        self._account = node_account(plan.name, self._child)
        self._power = Power(plan.name, spec.project, self._account, self._child) if plan.is_elastic else None
        storage = self._storage()
        self.shared = storage if isinstance(storage, SharedFiles) else storage.files
        disk = storage if isinstance(storage, SharedStorage) else None
        self._births = args.births(self.shared)
        head = Head(
            f"{plan.name}-head",
            HeadArgs(
                node=self._node(plan.head),
                machine=self._machine(plan.head),
                public_region=spec.region if plan.access.via == "public" else None,
                data_disk=disk.disk if disk else None,
                needs=[self._network.nat],
            ),
            self._child,
        )
        machines = {plan.head.name: head.machine}
        for group, section in plan.groups.items():
            made = self._node_group(group).machines
            machines |= made
            if self._power is not None and section.elastic is not None:
                self._power.permit(made)
        command = tunnel_command(head.machine.name, spec.zone, spec.project)
        self.hosts = cloud_hosts(
            plan,
            {name: (found.instance_id, host_key(found, spec.project)) for name, found in machines.items()},
            public_ip=head.public_ip,
            tunnel=(command, spec.iap_port) if plan.access.via == "bastion" else None,
            data_disk=disk.disk_id if disk else None,
        )
        if self._power is not None and plan.idle_minutes is not None:
            self._power.permit({plan.head.name: head.machine})
            self.hosts[0] = replace(self.hosts[0], wake=wake_command(head.machine.name, spec.zone, spec.project))
        self.register_outputs({"machines": list(machines)})

    def _storage(self) -> SharedStorage | SharedFiles:
        wanted, spec, plan = self._plan.storage, self._spec, self._plan
        if wanted.kind == "external":
            return SharedFiles(source=f"{wanted.address}:{wanted.path}", nfs="4.1")
        uses_disk = wanted.kind == "head_nfs"
        blocks = list(plan.network.subnets(prefixlen_diff=GROUP_BLOCKS.bit_length() - 1))
        return SharedStorage(
            f"{plan.name}-storage",
            SharedStorageArgs(
                name=f"{plan.name}-shared",
                kind="head_nfs" if uses_disk else "filestore",
                size_gib=wanted.size_gib,
                zone=spec.zone if uses_disk else spec.filestore.zone or spec.zone,
                protect=spec.protect_storage,
                network=self._network,
                tier=spec.filestore.tier,
                head=str(plan.head.private_ip),
                # The first block contains the head.
                clients=[str(block) for block in blocks[1:]],
            ),
            self._child,
        )

    def _machine(self, host: HostPlan) -> MachineType:
        spec, kind = self._spec, host.machine
        return MachineType(
            name=kind.name,
            zone=spec.zone,
            image=image_of(self._plan),
            boot_disk_gib=spec.boot_disk_gib,
            boot_disk_type=spec.boot_disk_type,
            service_account=self._account if self._power is None or host != self._plan.head else self._power.email,
            gpus=kind.gpus,
            elastic=self._plan.elastic(host),
            tier_1=spec.uses_tier_1(kind),
        )

    def _node(self, host: HostPlan) -> NodeArgs:
        birth, found = self._births[host.name], interfaces(self._layout, self._network, host)
        return NodeArgs(name=host.name, cards=found, user_data=birth.user_data, identity=birth.identity)

    def _node_group(self, name: str) -> NodeGroup:
        group, hosts, placement = self._plan.groups[name], self._plan.group(name), None
        if group.placement == "compact":
            wanted = PlacementArgs(name=f"{self._plan.name}-{name}-compact", region=self._spec.region)
            placement = Placement(f"{self._plan.name}-{name}-placement", wanted, self._child)
        return NodeGroup(
            f"{self._plan.name}-{name}",
            NodeGroupArgs(
                nodes=[self._node(host) for host in hosts],
                machine=self._machine(hosts[0]),
                capacity=Capacity(
                    kind=group.capacity.kind,
                    reservation=group.capacity.reservation,
                    placement_policy=placement.policy if placement else None,
                ),
                needs=[self._network.nat],
            ),
            self._child,
        )
