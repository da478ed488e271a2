"""AzureBaker builds a gallery image version from a builder's OS disk. This code has never run on Azure.

A version can be created from a managed disk. `waagent -deprovision` generalizes the disk, so the image definition has
the state GENERALIZED. The definition would also need the image's purchase plan, but the pinned image has none. Source:
MicrosoftDocs/azure-compute-docs at 5781de0a, articles/virtual-machines/image-version.md (read 2026-11-22).
"""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi_azure_native import compute

from components.node.bake import builder_user_data
from components.platforms.azure.network import Network
from components.platforms.azure.nodes import NodeArgs, machine
from components.platforms.azure.platform import machine_type, network_args, own_options, resource_group
from components.platforms.azure.spec import AzureSpec
from components.platforms.baker import BUILD_SECONDS, BakeArgs, Baker, builder_plan, disk_of_stopped

VERSION = "1.0.0"
"""The only version of an image definition. The definition's name contains a hash of the image's content."""
_STOPPED = frozenset({"PowerState/stopped", "PowerState/deallocated"})
"""Status codes of a machine that is off. A machine that was shut down from its guest is stopped but still billed. The
format is PowerState/<state> (MicrosoftDocs/azure-compute-docs@3255b21, articles/virtual-machines/states-billing.md,
read 2026-11-22). Azure can also stop a machine briefly during its creation, so the status is queried only after the run
command has ended."""
_REPORT = """\
while sleep 5; do
  read -r line </run/trainyard/bake || continue
  case $line in
    done) echo "$line"; exit 0 ;;
    failed*) echo "$line" >&2; exit 1 ;;
  esac
done
"""
"""Script that waits until the stages have finished. If a stage fails, the run command fails, and so does `up`."""
CAPTURE = """\
# The agent reports the result of the run command before it is deprovisioned.
sleep 120
waagent -deprovision+user -force
"""


class AzureBaker(Baker):
    """An image version with its gallery and resource group. The builder exists only during the build."""

    def __init__(self, args: BakeArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        spec = args.plan.platform_spec(AzureSpec)
        super().__init__(args, pulumi.ResourceOptions.merge(opts, own_options(args.name, spec)))
        self._args, self._child = args, pulumi.ResourceOptions(parent=self)
        self._group = resource_group(spec, args.name, args.name, self._child, label="trainyard-image")
        definition = self._definition()
        source = self._builder() if args.builds else pulumi.Output.from_input("")
        self.image = compute.GalleryImageVersion(
            args.name,
            gallery_image_version_name=VERSION,
            gallery_image_name=definition.name,
            gallery_name=self._gallery_name,
            storage_profile=compute.GalleryImageVersionStorageProfileArgs(
                os_disk_image=compute.GalleryOSDiskImageArgs(source=compute.GalleryDiskImageSourceArgs(id=source))
            ),
            publishing_profile=compute.GalleryImageVersionPublishingProfileArgs(
                target_regions=[compute.TargetRegionArgs(name=spec.region, regional_replica_count=1)]
            ),
            **self._group.common,
            # The builder and its disk are deleted once the version exists, so a changed source is ignored.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["storageProfile"]),
        ).id
        self.register_outputs({})

    @property
    def _gallery_name(self) -> str:
        # The name must be unique in the subscription and contain only letters, digits, dots and underscores
        # (MicrosoftDocs/azure-compute-docs@3515c0f, articles/virtual-machines/create-gallery.md, read 2026-11-22).
        return self._args.name.replace("-", "_")

    def _definition(self) -> compute.GalleryImage:
        name = self._args.name
        gallery = compute.Gallery(name, gallery_name=self._gallery_name, **self._group.common, opts=self._child)
        return compute.GalleryImage(
            name,
            gallery_image_name=name,
            gallery_name=gallery.name,
            identifier=compute.GalleryImageIdentifierArgs(publisher="trainyard", offer="node", sku=name),
            os_type=compute.OperatingSystemTypes.LINUX,
            os_state=compute.OperatingSystemStateTypes.GENERALIZED,
            # The default is generation 1, but some sizes, for example ND96isr_H100_v5, support only generation 2.
            # Without the SecurityType feature, the definition does not restrict the machines' security type
            # (MicrosoftDocs/azure-compute-docs@48a3724, articles/virtual-machines/shared-image-galleries.md, read
            # 2026-11-22). It is unverified which security type Azure uses, because `machine` sets no securityProfile.
            # With Trusted Launch, this definition needs the SecurityType feature. With an NVMe disk controller, it
            # needs DiskControllerType.
            hyper_v_generation=compute.HyperVGeneration.V2,
            architecture=compute.Architecture.X64,
            **self._group.common,
            opts=self._child,
        )

    def _builder(self) -> pulumi.Output[str]:
        """Declare the builder and return its OS disk's id, which is known only after the builder has shut down."""
        plan = builder_plan(self._args.plan, "bake")
        network = Network(f"{plan.name}-network", network_args(plan, self._group), self._child)
        made = machine(
            NodeArgs(
                name=plan.head.name,
                private_ip=str(plan.head.private_ip),
                user_data=builder_user_data(self._args.plan, CAPTURE),
                identity=self._args.name,
            ),
            machine_type(plan, plan.head, network.nodes, self._args.admin_key),
            self._group,
            self._child,
        )
        ended = compute.VirtualMachineRunCommandByVirtualMachine(
            f"{plan.head.name}-report",
            run_command_name="trainyard-bake",
            vm_name=made.name,
            source=compute.VirtualMachineRunCommandScriptSourceArgs(script=_REPORT),
            async_execution=False,
            timeout_in_seconds=BUILD_SECONDS,
            treat_failure_as_deployment_failure=True,
            **self._group.common,
            # Azure deletes run commands only while the machine is running (`host_key` in nodes.py).
            opts=pulumi.ResourceOptions(parent=made, retain_on_delete=True),
        )
        where = pulumi.Output.all(ended.id, self._group.name, made.name)
        return where.apply(lambda known: disk_of_stopped(known[2], lambda: _disk(made, known[1], known[2])))


async def _disk(made: compute.VirtualMachine, group: str, name: str) -> str | None:
    """Return the OS disk's id, or None while the machine is on."""
    found = await compute.get_virtual_machine_output(
        resource_group_name=group, vm_name=name, expand="instanceView", opts=pulumi.InvokeOptions(parent=made)
    ).future()
    if found is None or not {status.code for status in found.instance_view.statuses or ()} & _STOPPED:
        return None
    profile: Any = found.storage_profile
    return str(profile.os_disk.managed_disk.id)
