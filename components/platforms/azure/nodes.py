"""The head and the node groups of a cluster on Azure, as components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
from pulumi_azure_native import compute

from components.platforms.azure.machine import ON_DEMAND, Capacity, MachineType, NodeArgs, machine
from components.platforms.azure.network import HEAD_IDLE_MINUTES, public_address
from components.platforms.azure.resource_group import ResourceGroup
from components.platforms.former_parent import moved_from


@dataclass(frozen=True, kw_only=True)
class HeadArgs:
    """Arguments for a head node."""

    resource_group: ResourceGroup
    node: NodeArgs
    machine: MachineType
    is_public: bool = False
    """Whether the head has a static public address."""
    data_disk_id: pulumi.Input[str] | None = None
    """Resource id of the data disk with the shared files, or None if the files are stored elsewhere."""


class Head(pulumi.ComponentResource):
    """The head node: a machine with a fixed private address and, optionally, a public address and a data disk."""

    machine: compute.VirtualMachine
    public_ip: pulumi.Output[str] | None = None

    def __init__(self, name: str, args: HeadArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:Head", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts))
        address = None
        if args.is_public:
            address = public_address(args.node.name, args.resource_group, child, idle_minutes=HEAD_IDLE_MINUTES)
            self.public_ip = address.ip_address.apply(str)
        self.machine = machine(
            args.node,
            args.machine,
            args.resource_group,
            child,
            public_address=address.id if address is not None else None,
            data_disk=args.data_disk_id,
        )
        self.register_outputs({"name": args.node.name, "vmId": self.machine.vm_id, "publicIp": self.public_ip})


@dataclass(frozen=True, kw_only=True)
class NodeGroupArgs:
    """Arguments for a node group. All machines have the same type and capacity."""

    resource_group: ResourceGroup
    nodes: Sequence[NodeArgs]
    machine: MachineType
    capacity: Capacity = ON_DEMAND


class NodeGroup(pulumi.ComponentResource):
    """Machines of one type with fixed private addresses in a subnet."""

    machines: Mapping[str, compute.VirtualMachine]
    """The machines by name, in the order of the arguments."""

    def __init__(self, name: str, args: NodeGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:NodeGroup", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts))
        self.machines = {
            node.name: machine(node, args.machine, args.resource_group, child, capacity=args.capacity)
            for node in args.nodes
        }
        self.register_outputs({"names": list(self.machines), "vmIds": [made.vm_id for made in self.machines.values()]})
