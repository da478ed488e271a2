"""GcpPlatform creates a plan's machines in Compute Engine."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_gcp
from pulumi_gcp import serviceaccount

from components.node.parameters import SharedFiles
from components.plan.plan import GROUP_BLOCKS, HostPlan
from components.platforms.base import Platform, PlatformArgs, cloud_hosts
from components.platforms.gcp.facts import PROGRAM
from components.platforms.gcp.layout import cards, networks
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
    supports_tier_1,
)
from components.platforms.gcp.spec import GcpSpec
from components.platforms.gcp.storage import SharedStorage, SharedStorageArgs


def tunnel_command(machine: pulumi.Output[str], zone: str, project: str) -> pulumi.Output[Sequence[str]]:
    """Return the command, with "{port}" for the local port. `machine` is the name of the instance.

    Options: Google, "gcloud compute start-iap-tunnel" (read 2026-11-22). The command tests a connection before it
    listens, and exits with code 1 if the machine does not respond (google-cloud-sdk@01f043c:
    lib/googlecloudsdk/command_lib/compute/iap_tunnel.py, _TestConnection).
    """
    return machine.apply(
        lambda name: (
            PROGRAM,
            *("compute", "start-iap-tunnel", name, "22", "--local-host-port=127.0.0.1:{port}"),
            *(f"--zone={zone}", f"--project={project}"),
        )
    )


class GcpPlatform(Platform):
    """Networks with Cloud NAT, the shared storage, the head, and a placement and machines for each group."""

    def __init__(self, name: str, args: PlatformArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        plan, spec = args.plan, args.plan.platform_spec(GcpSpec)
        self._plan, self._spec = plan, spec
        # Without an explicit provider, the shell's default project would be used.
        provider = pulumi_gcp.Provider(
            f"{name}-provider",
            project=spec.project,
            region=spec.region,
            zone=spec.zone,
            default_labels={"trainyard-cluster": plan.name},
            opts=pulumi.ResourceOptions(parent=opts.parent if opts else None),
        )
        own = pulumi.ResourceOptions(providers=[provider])
        super().__init__(name, args, pulumi.ResourceOptions.merge(opts, own))
        self._child = pulumi.ResourceOptions(parent=self)
        self._layout = networks(plan)
        ssh_from = [IAP_RANGE] if plan.access.via == "bastion" else [str(cidr) for cidr in plan.access.allow_ssh_from]
        self._network = Network(
            f"{plan.name}-networks",
            NetworkArgs(project=spec.project, region=spec.region, layout=self._layout, ssh_from=ssh_from),
            self._child,
        )
        self._account = self._make_account()
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
        for group in plan.groups:
            machines |= self._node_group(group).machines
        command = tunnel_command(head.machine.name, spec.zone, spec.project)
        self.hosts = cloud_hosts(
            plan,
            {name: (made.instance_id, host_key(made, spec.project)) for name, made in machines.items()},
            public_ip=head.public_ip,
            tunnel=(command, spec.iap_port) if plan.access.via == "bastion" else None,
            data_disk=disk.disk_id if disk else None,
        )
        self.register_outputs({"machines": list(machines)})

    def _make_account(self) -> pulumi.Output[str]:
        """Declare a service account without roles. The project's default account has the Editor role."""
        account = serviceaccount.Account(
            f"{self._plan.name}-nodes",
            account_id=f"{self._plan.name}-nodes",
            display_name=f"Machines of the Trainyard cluster {self._plan.name}",
            opts=self._child,
        )
        return account.email

    def _storage(self) -> SharedStorage | SharedFiles:
        """Return the component for the shared storage, or the location of external storage."""
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
            service_account=self._account,
            gpus=kind.gpus,
            tier_1=spec.tier_1 and supports_tier_1(kind.name, kind.vcpus),
        )

    def _node(self, host: HostPlan) -> NodeArgs:
        birth = self._births[host.name]
        return NodeArgs(
            name=host.name,
            cards=[
                (card.kind.value, self._network.subnets[card.subnet], str(card.address))
                for card in cards(self._layout, host)
            ],
            user_data=birth.apply(lambda made: made.user_data),
            identity=birth.apply(lambda made: made.identity),
        )

    def _node_group(self, name: str) -> NodeGroup:
        """Declare the placement and the machines of a node group."""
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
