"""The head and the node groups of a cluster on Google Cloud, as components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_gcp import compute

from components.platforms.former_parent import moved_from
from components.platforms.gcp.machine import ON_DEMAND, Capacity, MachineType, NodeArgs, machine
from components.platforms.gcp.network import HEAD_TAG


@dataclass(frozen=True, kw_only=True)
class HeadArgs:
    """Arguments for a head node."""

    node: NodeArgs
    machine: MachineType
    public_region: str | None = None
    """Region of a static public address, or None for a head without one."""
    data_disk: pulumi.Input[str] | None = None
    """Self link of the data disk with the shared files, or None if the files are stored elsewhere."""
    needs: Sequence[pulumi.Resource] = ()
    """Resources that the first boot needs, for example Cloud NAT, to which no input of the machine refers."""


class Head(pulumi.ComponentResource):
    """The head node: a machine with fixed private addresses and, optionally, a public address and a data disk."""

    machine: compute.Instance
    public_ip: pulumi.Output[str] | None = None

    def __init__(self, name: str, args: HeadArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:gcp:Head", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts))
        if args.public_region is not None:
            address = f"{args.node.name}-address"
            self.public_ip = compute.Address(address, name=address, region=args.public_region, opts=child).address
        self.machine = machine(
            args.node,
            args.machine,
            pulumi.ResourceOptions.merge(child, pulumi.ResourceOptions(depends_on=list(args.needs))),
            tags=[HEAD_TAG],
            public_ip=self.public_ip,
            data_disk=args.data_disk,
        )
        self.register_outputs(
            {"name": args.node.name, "instanceId": self.machine.instance_id, "publicIp": self.public_ip}
        )


@dataclass(frozen=True, kw_only=True)
class NodeGroupArgs:
    """Arguments for a node group. All machines have the same type and capacity."""

    nodes: Sequence[NodeArgs]
    machine: MachineType
    capacity: Capacity = ON_DEMAND
    needs: Sequence[pulumi.Resource] = ()
    """Resources that the first boot needs, for example Cloud NAT, to which no input of the machines refers."""


class NodeGroup(pulumi.ComponentResource):
    """Machines of one type with fixed private addresses in existing subnets."""

    machines: Mapping[str, compute.Instance]
    """The machines by name, in the order of the arguments."""

    def __init__(self, name: str, args: NodeGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:gcp:NodeGroup", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts), depends_on=list(args.needs))
        self.machines = {node.name: machine(node, args.machine, child, capacity=args.capacity) for node in args.nodes}
        self.register_outputs(
            {"names": list(self.machines), "instanceIds": [made.instance_id for made in self.machines.values()]}
        )
