"""Head, NodeGroup and Placement: a cluster's machines on Google Cloud, their placement and their SSH host keys.

The keys are read through Google's API instead of over SSH. The bootstrap publishes the key as a guest attribute and
prints it on the serial console (publish_host_key and main in cloud-init/files/usr/local/lib/trainyard/bootstrap). The
console is the fallback, because an organisation can forbid guest attributes
(constraints/compute.disableGuestAttributesAccess).

If a machine does not exist, the provider's data source for guest attributes raises an error. For any other error, for
example a missing attribute or permission, the data source returns an empty result
(terraform-provider-google-beta@93c65b2d60fe, services/compute/data_source_google_compute_instance_guest_attributes.go,
read 2026-11-22). Therefore an empty result can mean that the key is not published yet.

The API returns only the last 1 MB of the console's output (Google, "Method: instances.getSerialPortOutput", read
2026-11-24), and the data source does not return the position at which this output starts. Therefore a process that can
write to the console could print its own key and enough text to push the real one out of the output. The console is
trusted only during a machine's first boot, and only if its output is far too short to have lost its beginning.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pulumi
from pulumi_gcp import compute

from components.plan.plan import ClusterPlan
from components.platforms.base import host_key_wait, moved_from
from components.platforms.gcp.network import HEAD_TAG
from components.platforms.gcp.spec import Family, GcpSpec, family_of
from trainyard.outputs import HOST_KEY

_BIRTH = ('metadata["user-data"]', "bootDisk.initializeParams.image")
"""Properties that have no effect on existing machines, so changes to them are ignored. A machine that is replaced, for
example with `pulumi up --replace`, gets the new values (see the same name in components/platforms/azure)."""
_RESERVATION_KEY = "compute.googleapis.com/reservation-name"


DATA_DISK = "trainyard-shared"
"""Device name of the shared disk. In the guest, the disk is linked as /dev/disk/by-id/google-<device name>."""


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """The facts that the machines of a group share."""

    name: str
    """Google's name of the machine type, for example a3-megagpu-8g."""
    zone: str
    image: str
    """projects/<project>/global/images/<name>"""
    boot_disk_gib: int
    service_account: pulumi.Input[str]
    """Email of the machines' service account."""
    boot_disk_type: str | None = None
    """Default: the first type that the machine family supports."""
    gpus: int = 0
    tier_1: bool = False
    """Whether the machines pay for a higher egress bandwidth."""


@dataclass(frozen=True, kw_only=True)
class NodeArgs:
    """One machine of a group."""

    name: str
    cards: Sequence[tuple[str, pulumi.Input[str], str]]
    """The type (GVNIC or MRDMA), the subnet's self link and the fixed address of each network interface."""
    user_data: pulumi.Input[str]
    identity: pulumi.Input[str] = ""
    """If this text changes, the machine is replaced."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How Google provides the machines of a group."""

    kind: Literal["on_demand", "spot", "reservation"] = "on_demand"
    reservation: str | None = None
    """Name of a reservation."""
    placement_policy: pulumi.Input[str] | None = None
    """Self link of a compact placement policy."""


ON_DEMAND = Capacity()


def machine(  # noqa: PLR0913  (the parts of a machine that differ between the head, the workers and the builder)
    node: NodeArgs,
    kind: MachineType,
    opts: pulumi.ResourceOptions,
    *,
    capacity: Capacity = ON_DEMAND,
    tags: Sequence[str] | None = None,
    public_ip: pulumi.Input[str] | None = None,
    data_disk: pulumi.Input[str] | None = None,
) -> compute.Instance:
    """Declare the machine and return it.

    A change to the identity replaces the machine, because cloud-init applies user-data only at the first boot. A
    change to the user-data or the image alone does not replace it. Other metadata keys are updated in place:
    `gcloud compute ssh` adds ssh-keys, and a refresh reads all keys into the state.
    The old machine is deleted first, because the new machine has the same name and addresses.
    """
    merged = pulumi.ResourceOptions.merge(
        opts,
        pulumi.ResourceOptions(
            replacement_trigger=node.identity,
            delete_before_replace=True,
            # Machines with bundled local SSDs report these SSDs as scratchDisks. This difference must not replace the
            # machine.
            ignore_changes=["scratchDisks", *_BIRTH],
        ),
    )
    return compute.Instance(
        node.name,
        name=node.name,
        machine_type=kind.name,
        zone=kind.zone,
        boot_disk=_boot_disk(kind),
        attached_disks=[compute.InstanceAttachedDiskArgs(source=data_disk, device_name=DATA_DISK)]
        if data_disk is not None
        else None,
        network_interfaces=_interfaces(node, public_ip),
        network_performance_config=compute.InstanceNetworkPerformanceConfigArgs(total_egress_bandwidth_tier="TIER_1")
        if kind.tier_1
        else None,
        scheduling=scheduling(
            family_of(kind.name), kind.gpus, capacity.kind, compact=capacity.placement_policy is not None
        ),
        resource_policies=capacity.placement_policy,
        reservation_affinity=_reservation(capacity.reservation),
        # The account has no roles. The scope does not limit its permissions, which depend only on IAM roles.
        service_account=compute.InstanceServiceAccountArgs(email=kind.service_account, scopes=["cloud-platform"]),
        # Secure Boot rejects the unsigned kernel modules that DKMS builds.
        shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
            enable_secure_boot=False, enable_vtpm=True, enable_integrity_monitoring=True
        ),
        metadata={
            "user-data": node.user_data,
            # The bootstrap publishes the host key as a guest attribute.
            "enable-guest-attributes": "TRUE",
            # User-data defines the users, whose ids are the same on all nodes. OS Login would add other users.
            "enable-oslogin": "FALSE",
            "block-project-ssh-keys": "TRUE",
        },
        tags=tags,
        # A refresh compares this value with the machine's status, so `pulumi up --refresh` starts a stopped machine.
        desired_status="RUNNING",
        allow_stopping_for_update=True,
        opts=merged,
    )


def scheduling(family: Family, gpus: int, kind: str, *, compact: bool = False) -> compute.InstanceSchedulingArgs:
    """Return the scheduling options of a machine. `kind` is on_demand, spot or reservation."""
    if kind == "spot":
        # STOP keeps the disk, the name and the addresses, so `pulumi up --refresh` later starts the same node.
        return compute.InstanceSchedulingArgs(
            provisioning_model="SPOT",
            on_host_maintenance="TERMINATE",
            automatic_restart=False,
            preemptible=True,
            instance_termination_action="STOP",
        )
    if kind == "reservation" and family.dense_reservations:
        return compute.InstanceSchedulingArgs(
            provisioning_model="RESERVATION_BOUND",
            on_host_maintenance="TERMINATE",
            automatic_restart=True,
            preemptible=False,
            instance_termination_action="DELETE",
        )
    return compute.InstanceSchedulingArgs(
        provisioning_model="STANDARD",
        # GPU machines cannot migrate to another host, and the machines in a compact group must stay together.
        on_host_maintenance="TERMINATE" if gpus or compact else "MIGRATE",
        # A restart could place the machine outside the compact group. Google's Cluster Toolkit also disables automatic
        # restarts.
        automatic_restart=not compact,
        preemptible=False,
    )


def image_of(plan: ClusterPlan) -> str:
    """Return the image of new machines: projects/<project>/global/images/<name>."""
    spec = plan.platform_spec(GcpSpec)
    return spec.baked_image or spec.base_image(str(plan.image.reference))


def _boot_disk(kind: MachineType) -> compute.InstanceBootDiskArgs:
    params = compute.InstanceBootDiskInitializeParamsArgs(
        image=kind.image,
        type=kind.boot_disk_type or family_of(kind.name).boot_disks[0],
        size=kind.boot_disk_gib,
    )
    return compute.InstanceBootDiskArgs(auto_delete=True, initialize_params=params)


def supports_tier_1(machine: str, vcpus: int) -> bool:
    """Return whether a machine type supports a higher egress bandwidth."""
    starts_at = family_of(machine).tier_1_from_vcpus
    return starts_at is not None and vcpus >= starts_at


def _interfaces(node: NodeArgs, public_ip: pulumi.Input[str] | None) -> list[compute.InstanceNetworkInterfaceArgs]:
    # Google derives the network from the subnet.
    cards = [
        compute.InstanceNetworkInterfaceArgs(subnetwork=subnet, network_ip=address, nic_type=kind)
        for kind, subnet, address in node.cards
    ]
    if public_ip is not None:
        cards[0].access_configs = [compute.InstanceNetworkInterfaceAccessConfigArgs(nat_ip=public_ip)]
    return cards


def _reservation(name: str | None) -> compute.InstanceReservationAffinityArgs | None:
    if name is None:
        return None
    named = compute.InstanceReservationAffinitySpecificReservationArgs(key=_RESERVATION_KEY, values=[name])
    return compute.InstanceReservationAffinityArgs(type="SPECIFIC_RESERVATION", specific_reservation=named)


@dataclass(frozen=True, kw_only=True)
class PlacementArgs:
    """Arguments for a compact placement."""

    name: str
    """Name of the policy in Google Cloud."""
    region: str


class Placement(pulumi.ComponentResource):
    """A placement policy that keeps the machines of a node group close together."""

    policy: pulumi.Output[str]
    """Self link for the machines' `placement_policy`."""

    def __init__(self, name: str, args: PlacementArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:gcp:Placement", name, None, opts)
        self.policy = compute.ResourcePolicy(
            args.name,
            name=args.name,
            region=args.region,
            group_placement_policy=compute.ResourcePolicyGroupPlacementPolicyArgs(collocation="COLLOCATED"),
            opts=pulumi.ResourceOptions(parent=self, aliases=moved_from(opts)),
        ).self_link
        self.register_outputs({"policy": self.policy})


KEY = "hostkeys/ssh-ed25519"
"""Name of the guest attribute. Google's guest agent publishes host keys under the same name."""
CONSOLE_MARK = "trainyard-hostkey: "
"""Prefix of the console line that contains the key."""

_ATTRIBUTES = "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes"
_CONSOLE = "gcp:compute/getInstanceSerialPort:getInstanceSerialPort"
_CONSOLE_PORT = 1
_LONGEST_PAUSE_SECONDS = 10
_CONSOLE_EVERY = 6
"""Number of attempts between two reads of the console, whose output can be up to 1 MB."""
_TRUSTED_BYTES = 500_000
"""Half of the output that the API keeps, because the API may drop bytes that are not UTF-8 from its answer."""
_TYPE = "ssh-ed25519 "


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """Identifiers of a machine in the API, and the resource that warnings refer to."""

    name: str
    zone: str
    project: str
    resource: compute.Instance | None = None

    def warn(self, message: str) -> None:
        pulumi.log.warn(message, self.resource)


class _UnavailableError(Exception):
    """The machine is stopped or does not exist. The text is a warning that includes the fix."""


def host_key(machine: compute.Instance, project: str) -> pulumi.Output[str]:
    """Return the host key ("ssh-ed25519 AAAA..."), or "" if the machine has not published it.

    `up` waits for the key of a new machine. In a preview, the key is read once, without waiting. The same
    applies to a machine that is not new, for example a stopped Spot machine.
    """
    # The instance id is an input so that the key of a replaced machine is read again.
    facts = pulumi.Output.all(machine.name, machine.zone, machine.instance_id, machine.creation_timestamp)
    return facts.apply(
        lambda known: _read(
            _Machine(name=known[0], zone=known[1].rpartition("/")[2], project=project, resource=machine),
            host_key_wait(known[3]),
        )
    )


async def _read(machine: _Machine, wait: int) -> str:
    try:
        return await _published(machine, wait)
    except _UnavailableError as reason:
        machine.warn(str(reason))
    except Exception as error:
        if not pulumi.runtime.is_dry_run():
            raise
        machine.warn(f"the SSH host key of {machine.name} cannot be read: {error}")
    return ""


async def _published(machine: _Machine, wait: int) -> str:
    """Return the key, or "" if it is not published within `wait` seconds. Raises _UnavailableError."""
    waited = attempt = 0
    while True:
        pause = min(2**attempt, _LONGEST_PAUSE_SECONDS)
        last = waited + pause > wait
        key = await _attribute(machine)
        if not key and (last or attempt % _CONSOLE_EVERY == 0):
            key = await _console(machine, first_boot=wait > 0, report=last)
        if key or last:
            return key
        await asyncio.sleep(pause)
        waited += pause
        attempt += 1


async def _attribute(machine: _Machine) -> str:
    """Return the key from the guest attributes, or ""."""
    where = {"name": machine.name, "zone": machine.zone, "project": machine.project, "variableKey": KEY}
    answer = await _invoke(_ATTRIBUTES, where, machine)
    value = str(answer.get("variableValue") or "").strip()
    return _valid(value if value.startswith("ssh-") else f"{_TYPE}{value}")


async def _console(machine: _Machine, *, first_boot: bool, report: bool) -> str:
    """Return the key from the serial console, or "" if there is none or the console is not trusted.

    If `report` is true, an unreadable console and a key that is not trusted cause a warning.
    """
    where = {"instance": machine.name, "zone": machine.zone, "project": machine.project, "port": _CONSOLE_PORT}
    try:
        answer = await _invoke(_CONSOLE, where, machine)
    except _UnavailableError:
        raise
    except Exception as error:
        # A stopped machine has no console (Google, "View serial port output"). The name of the error is unverified.
        if "resourceNotReady" in str(error):
            raise _UnavailableError(f"{machine.name} is stopped. `pulumi up --refresh` starts it") from error
        if report:
            machine.warn(f"{machine.name} has no guest attribute {KEY}, and its console cannot be read: {error}")
        return ""
    contents = str(answer.get("contents") or "")
    lines = (line.rstrip("\r") for line in contents.split("\n"))
    keys = (_valid(line.removeprefix(CONSOLE_MARK)) for line in lines if line.startswith(CONSOLE_MARK))
    # The first valid key is the machine's, because the bootstrap prints it before any user process runs.
    key = next(filter(None, keys), "")
    if first_boot and len(contents.encode()) < _TRUSTED_BYTES:
        return key
    if key and report:
        machine.warn(
            f"the key on the serial console of {machine.name} is not used, because processes on the machine may have "
            "printed it: `up` trusts a console only during a machine's first boot, while its output is shorter than "
            f"{_TRUSTED_BYTES // 1000} kB. A key in the stack's state remains in use. If `up` reports that no key is "
            "known, replace the machine: `pulumi up --replace URN`"
        )
    return ""


async def _invoke(token: str, where: dict[str, Any], machine: _Machine) -> dict[str, Any]:
    """Return the result of a data source. Raises _UnavailableError if the machine does not exist.

    The SDK's typed functions return outputs. An output with an error fails the program, even if the error is handled
    (pulumi 3.250.0, output.py, Output._track; read 2026-11-24).
    """
    try:
        return await pulumi.runtime.invoke_async(token, where, pulumi.InvokeOptions(parent=machine.resource)) or {}
    except Exception as error:
        # The pattern matches the provider's HandleDataSourceNotFoundError and the API's 404 error for the console.
        if re.search(rf"instances/{re.escape(machine.name)}'? (was )?not found", str(error)):
            raise _UnavailableError(
                f"{machine.name} does not exist in {machine.project}, {machine.zone}: it was deleted outside Pulumi. "
                "Run `pulumi refresh`, then `pulumi up` creates it again"
            ) from error
        raise


def _valid(key: str) -> str:
    """Return the key, or "" if it is invalid. Any process on the machine can write guest attributes."""
    return key if key.startswith(_TYPE) and HOST_KEY.fullmatch(key) else ""


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
