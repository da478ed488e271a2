"""The containers of node groups as resources of Azure."""

from __future__ import annotations

import pulumi

from components.platforms.azure.containers import Kind
from components.platforms.azure.site import Site
from components.platforms.narrow import narrow_import

with narrow_import("pulumi_azure_native.compute"):
    from pulumi_azure_native.compute._inputs import ProximityPlacementGroupPropertiesIntentArgs, SkuArgs
    from pulumi_azure_native.compute.availability_set import AvailabilitySet
    from pulumi_azure_native.compute.proximity_placement_group import ProximityPlacementGroup
    from pulumi_azure_native.compute.virtual_machine_scale_set import VirtualMachineScaleSet

_FAULT_DOMAINS = _UPDATE_DOMAINS = 1
"""More fault domains spread the machines of one InfiniBand network over more racks, which makes them harder to
allocate. Azure/azurehpc@6dac1ef9:pyazhpc/arm.py makes its availability sets with 1 and 1; with one fault domain Azure
takes no other number of update domains (MicrosoftDocs/azure-docs pull request 121752; both read 2026-11-22)."""


def holder(kind: Kind, group: str, size: str, site: Site, opts: pulumi.ResourceOptions) -> pulumi.Output[str] | None:
    """Declare what holds a group's machines of one size together and return its id; None where nothing does."""
    name = f"{site.cluster}-{group}"
    match kind:
        case Kind.AVAILABILITY_SET:
            return _availability_set(name, site, opts)
        case Kind.SCALE_SET:
            return _scale_set(name, site, opts)
        case Kind.PROXIMITY:
            return _proximity(name, size, site, opts)
        case Kind.NOTHING:
            return None


def _availability_set(name: str, site: Site, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    return AvailabilitySet(
        name,
        availability_set_name=name,
        resource_group_name=site.group,
        location=site.region,
        sku=SkuArgs(name="Aligned"),
        platform_fault_domain_count=_FAULT_DOMAINS,
        platform_update_domain_count=_UPDATE_DOMAINS,
        tags=site.tags,
        opts=_anew(opts),
    ).id


def _scale_set(name: str, site: Site, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    """A set without a scaling profile: machines join it one by one, each with its own name and address.

    Azure lets new machines join only a flexible set whose singlePlacementGroup is false, and a set without a profile
    has null unless it is told (MicrosoftDocs/azure-compute-docs@01e1fb7d:articles/virtual-machine-scale-sets/
    virtual-machine-scale-sets-attach-detach-vm.md). One fault domain is what edwardsp/azcluster@09b0d6d7:
    bicep/modules/compute.bicep has with it, and a zonal set allows no other number (read 2026-11-22).
    """
    return VirtualMachineScaleSet(
        name,
        vm_scale_set_name=name,
        resource_group_name=site.group,
        location=site.region,
        orchestration_mode="Flexible",
        platform_fault_domain_count=1,
        single_placement_group=False,
        zones=site.zones,
        tags=site.tags,
        opts=_anew(opts),
    ).id


def _proximity(name: str, size: str, site: Site, opts: pulumi.ResourceOptions) -> pulumi.Output[str]:
    return ProximityPlacementGroup(
        name,
        proximity_placement_group_name=name,
        resource_group_name=site.group,
        location=site.region,
        proximity_placement_group_type="Standard",
        zones=site.zones,
        # Azure takes a zone only together with what is to be found in it.
        intent=ProximityPlacementGroupPropertiesIntentArgs(vm_sizes=[size]) if site.zones else None,
        tags=site.tags,
        opts=_anew(opts),
    ).id


def _anew(opts: pulumi.ResourceOptions) -> pulumi.ResourceOptions:
    """Azure changes none of this on a container that exists; its name is taken until it has gone."""
    fixed = [
        "platformFaultDomainCount",
        "platformUpdateDomainCount",
        "singlePlacementGroup",
        "orchestrationMode",
        "zones",
        "intent",
    ]
    return pulumi.ResourceOptions.merge(
        opts, pulumi.ResourceOptions(replace_on_changes=fixed, delete_before_replace=True)
    )
