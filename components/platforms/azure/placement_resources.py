"""Availability sets, scale sets and proximity placement groups for node groups."""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
from pulumi_azure_native import compute

from components.platforms.azure.placement import PlacementKind
from components.platforms.azure.resource_group import ResourceGroup
from components.platforms.former_parent import moved_from

_FAULT_DOMAINS = _UPDATE_DOMAINS = 1
"""With more fault domains, Azure spreads the machines of one InfiniBand network over more racks, so it finds capacity
less often. Azure/azurehpc@6dac1ef9:pyazhpc/arm.py creates availability sets with one fault domain and one update
domain. With one fault domain, Azure requires one update domain (MicrosoftDocs/azure-docs pull request 121752; both read
2026-11-22)."""
_FIXED = [
    "platformFaultDomainCount",
    "platformUpdateDomainCount",
    "singlePlacementGroup",
    "orchestrationMode",
    "zones",
    "intent",
]
"""Properties that Azure never updates in place."""


@dataclass(frozen=True, kw_only=True)
class PlacementArgs:
    """Arguments for a placement. `size` is the VM size of the machines."""

    resource_group: ResourceGroup
    kind: PlacementKind
    name: str
    """Name of the resource in Azure."""
    size: str


class Placement(pulumi.ComponentResource):
    """An availability set, a flexible scale set or a proximity placement group for the machines of a node group."""

    id: pulumi.Output[str]
    """Resource id for the machines' `placement_id`."""

    def __init__(self, name: str, args: PlacementArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:azure:Placement", name, None, opts)
        # The old resource is deleted first, because the new resource has the same name.
        child = pulumi.ResourceOptions(
            parent=self, replace_on_changes=_FIXED, delete_before_replace=True, aliases=moved_from(opts)
        )
        match args.kind:
            case PlacementKind.AVAILABILITY_SET:
                self.id = _availability_set(args.name, args.resource_group, child)
            case PlacementKind.SCALE_SET:
                self.id = _scale_set(args.name, args.resource_group, child)
            case PlacementKind.PROXIMITY:
                self.id = _proximity(args.name, args.size, args.resource_group, child)
            case PlacementKind.NONE:
                raise ValueError("a group without placement needs no component")
        self.register_outputs({"id": self.id})


def _availability_set(name: str, resource_group: ResourceGroup, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    return compute.AvailabilitySet(
        name,
        availability_set_name=name,
        sku=compute.SkuArgs(name="Aligned"),
        platform_fault_domain_count=_FAULT_DOMAINS,
        platform_update_domain_count=_UPDATE_DOMAINS,
        **resource_group.common,
        opts=opts,
    ).id


def _scale_set(name: str, resource_group: ResourceGroup, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """Declare a scale set without a profile. Machines join it one by one, each with its own name and address.

    A new machine can join a scale set only if it is flexible and its singlePlacementGroup is false. Without a profile,
    the default is null (MicrosoftDocs/azure-compute-docs@01e1fb7d:articles/virtual-machine-scale-sets/
    virtual-machine-scale-sets-attach-detach-vm.md, read 2026-11-22). A zonal scale set supports only one fault domain.
    """
    return compute.VirtualMachineScaleSet(
        name,
        vm_scale_set_name=name,
        orchestration_mode="Flexible",
        platform_fault_domain_count=_FAULT_DOMAINS,
        single_placement_group=False,
        zones=resource_group.zones,
        **resource_group.common,
        opts=opts,
    ).id


def _proximity(name: str, size: str, resource_group: ResourceGroup, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    return compute.ProximityPlacementGroup(
        name,
        proximity_placement_group_name=name,
        proximity_placement_group_type="Standard",
        zones=resource_group.zones,
        # Azure accepts a zone only if the machine sizes of the group are set as well.
        intent=compute.ProximityPlacementGroupPropertiesIntentArgs(vm_sizes=[size]) if resource_group.zones else None,
        **resource_group.common,
        opts=opts,
    ).id
