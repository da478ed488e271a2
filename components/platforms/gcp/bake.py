"""GcpBaker builds an image from a builder's boot disk. This code has never run on Google Cloud.

Google does not create an image from a disk that is attached to a running instance (the --force option of `gcloud
compute images create`: MakeForceArg in the source of gcloud, read 2026-11-22), so the builder shuts down first. A guest
attribute reports that the stages have finished. It is unverified whether an image inherits the licenses and features of
its base image if `licenses` and `guest_os_features` are not set.
"""

from __future__ import annotations

import pulumi
from pulumi_gcp import compute

from components.node.bake import builder_user_data
from components.platforms.baker import BakeArgs, Baker, builder_plan, disk_of_stopped
from components.platforms.gcp.layout import networks
from components.platforms.gcp.network import Network, NetworkArgs
from components.platforms.gcp.nodes import MachineType, NodeArgs, machine
from components.platforms.gcp.platform import interfaces, node_account, own_options
from components.platforms.gcp.spec import GcpSpec

ATTRIBUTE = "trainyard/bake"
"""Guest attribute that contains the builder's last report."""
CAPTURE = f"""\
text=$(LC_ALL=C tr -cd '[:print:]' <"$result")
text=${{text:0:500}}
for attempt in 1 2 3 4 5; do
  if exec {{server}}<>/dev/tcp/169.254.169.254/80; then
    printf '%s\\r\\n' 'PUT /computeMetadata/v1/instance/guest-attributes/{ATTRIBUTE} HTTP/1.0' \\
      'Host: metadata.google.internal' 'Metadata-Flavor: Google' "Content-Length: ${{#text}}" '' >&"$server"
    printf '%s' "$text" >&"$server"
    read -r -t 10 _ <&"$server" || true
    exec {{server}}>&-
    break
  fi
  sleep "$attempt"
done
# The provisioner reads the attribute while the machine runs.
sleep 60
"""


class GcpBaker(Baker):
    """An image. The builder machine and its network exist only during the build."""

    def __init__(self, args: BakeArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        self._args, self._spec = args, args.plan.platform_spec(GcpSpec)
        own = own_options(args.name, self._spec, {"trainyard-image": args.name})
        super().__init__(args, pulumi.ResourceOptions.merge(opts, own))
        self._child = pulumi.ResourceOptions(parent=self)
        self.image = compute.Image(
            args.name,
            name=args.name,
            family=args.name.rpartition("-")[0],
            source_disk=self._builder() if args.builds else None,
            # The builder and its disk are deleted once the image exists, so a changed source is ignored.
            opts=pulumi.ResourceOptions(parent=self, ignore_changes=["sourceDisk"]),
        ).name.apply(lambda name: f"projects/{self._spec.project}/global/images/{name}")
        self.register_outputs({})

    def _builder(self) -> pulumi.Output[str]:
        """Declare the builder and return its boot disk's link, which is known only after the builder has shut down."""
        # The networks' names begin with the plan's name, so that a project can contain several builders.
        plan = builder_plan(self._args.plan, f"bake-{self._args.name.rpartition('-')[2][:11]}")
        layout = networks(plan)
        network = Network(
            f"{plan.name}-networks",
            NetworkArgs(project=self._spec.project, region=self._spec.region, layout=layout),
            self._child,
        )
        name = plan.head.name
        instance = machine(
            NodeArgs(
                name=name,
                cards=interfaces(layout, network, plan.head),
                user_data=builder_user_data(self._args.plan, CAPTURE),
            ),
            MachineType(
                name=plan.head.machine.name,
                zone=self._spec.zone,
                image=self._spec.base_image(str(plan.image.reference)),
                boot_disk_gib=self._spec.boot_disk_gib,
                boot_disk_type=self._spec.boot_disk_type,
                service_account=node_account(plan.name, self._child),
            ),
            # The builder downloads packages through Cloud NAT, but none of its inputs refers to Cloud NAT.
            pulumi.ResourceOptions(parent=self, depends_on=[network.nat]),
        )
        return instance.id.apply(lambda _: disk_of_stopped(name, _Progress(instance, name, self._spec).disk))


class _Progress:
    """Reads the builder's report and state."""

    def __init__(self, instance: compute.Instance, name: str, spec: GcpSpec) -> None:
        self._options = pulumi.InvokeOptions(parent=instance)
        self._where = {"name": name, "zone": spec.zone, "project": spec.project}
        self._is_done = False

    async def disk(self) -> str | None:
        """Return the boot disk's link, or None while the builder is on. Raises pulumi.RunError if the build failed."""
        answer = await compute.get_instance_guest_attributes_output(
            **self._where, variable_key=ATTRIBUTE, opts=self._options
        ).future()
        report = str((answer and answer.variable_value) or "")
        self._is_done = self._is_done or report == "done"
        if report.startswith("failed"):
            raise pulumi.RunError(f"{self._where['name']}: {report}. Fix: correct the cause, and run `yard bake` again")
        found = await compute.get_instance_output(**self._where, opts=self._options).future()
        if found is None or found.current_status not in {"TERMINATED", "STOPPED"}:
            return None
        if not self._is_done:
            raise pulumi.RunError(
                f"{self._where['name']} is off and has not published the guest attribute {ATTRIBUTE}. Fix: allow guest "
                "attributes (constraints/compute.disableGuestAttributesAccess), and run `yard bake` again"
            )
        return found.boot_disks[0].source
