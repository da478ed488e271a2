"""Head, NodeGroup and Placement: a cluster's machines on Google Cloud, with their placement and SSH host keys.

The keys are read through Google's API instead of over SSH. The bootstrap publishes a machine's key as a guest attribute
and prints it on the serial console (publish_host_key and main in cloud-init/files/usr/local/lib/trainyard/bootstrap).
The console is the fallback, because an organisation can forbid guest attributes
(constraints/compute.disableGuestAttributesAccess).

The provider's data source for guest attributes raises an error if the machine does not exist. After any other error,
for example a missing permission, it returns an empty result (terraform-provider-google-beta@93c65b2d60fe,
services/compute/data_source_google_compute_instance_guest_attributes.go, read 2026-11-22). Therefore an empty result
means either such an error or a key that has not been published yet.

The API returns only the last 1 MB of the console's output (Google, "Method: instances.getSerialPortOutput", read
2026-11-24), and the data source does not say where in the output this part starts. Therefore a process that can write
to the console could print its own key, followed by enough text to push out the real one. That is why the console is
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
"""Changes to these properties are ignored, because they would have no effect on existing machines. A machine that is
replaced, for example with `pulumi up --replace`, gets the new values (see _BIRTH in components/platforms/azure)."""
DATA_DISK = "trainyard-shared"
"""The shared disk's device name. In the guest, the disk is linked as /dev/disk/by-id/google-<device name>."""


@dataclass(frozen=True, kw_only=True)
class MachineType:
    """Properties that all machines of a group share."""

    name: str
    """Google's name for the machine type, for example a3-megagpu-8g."""
    zone: str
    image: str
    """projects/<project>/global/images/<name>"""
    boot_disk_gib: int
    service_account: pulumi.Input[str] | None = None
    """Email of the machines' service account, or None for machines without one."""
    boot_disk_type: str | None = None
    """Default: the first disk type that the machine family supports."""
    gpus: int = 0
    elastic: bool = False
    """Whether the head starts and stops the machines."""
    tier_1: bool = False
    """Whether the machines use Tier_1 networking, which has a higher egress bandwidth and costs extra."""


@dataclass(frozen=True, kw_only=True)
class NodeArgs:
    """Arguments for one machine of a group."""

    name: str
    cards: Sequence[tuple[str, pulumi.Input[str], str]]
    """For each network interface, its type (GVNIC or MRDMA), its subnet's self link and its fixed address."""
    user_data: pulumi.Input[str]
    identity: pulumi.Input[str] = ""
    """If the identity changes, the machine is replaced."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """How Google provides a group's machines."""

    kind: Literal["on_demand", "spot", "reservation"] = "on_demand"
    reservation: str | None = None
    """The reservation's name."""
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
    """Declare a machine and return it.

    The machine is replaced if its identity changes, because cloud-init applies user-data only at the first boot. The
    machine is not replaced if only its user-data or image changes. Other metadata keys are updated in place, because
    `gcloud compute ssh` adds ssh-keys, which a refresh reads into the state. The old machine is deleted first, because
    the new one has the same name and addresses.
    """
    own = pulumi.ResourceOptions(
        replacement_trigger=node.identity,
        delete_before_replace=True,
        # The bundled local SSDs, which a machine reports as scratchDisks, must not cause a replacement.
        ignore_changes=["scratchDisks", *_BIRTH],
    )
    boot_disk = compute.InstanceBootDiskInitializeParamsArgs(
        image=kind.image, type=kind.boot_disk_type or family_of(kind.name).boot_disks[0], size=kind.boot_disk_gib
    )
    return compute.Instance(
        node.name,
        name=node.name,
        machine_type=kind.name,
        zone=kind.zone,
        boot_disk=compute.InstanceBootDiskArgs(auto_delete=True, initialize_params=boot_disk),
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
        # The scope does not limit the account's permissions, which depend only on its IAM roles.
        service_account=compute.InstanceServiceAccountArgs(email=kind.service_account, scopes=["cloud-platform"])
        if kind.service_account is not None
        else None,
        # Secure Boot rejects the unsigned kernel modules that DKMS builds.
        shielded_instance_config=compute.InstanceShieldedInstanceConfigArgs(
            enable_secure_boot=False, enable_vtpm=True, enable_integrity_monitoring=True
        ),
        metadata={
            "user-data": node.user_data,
            # The bootstrap publishes the host key as a guest attribute.
            "enable-guest-attributes": "TRUE",
            # User-data creates the users with the same ids on all nodes, but OS Login would add other users.
            "enable-oslogin": "FALSE",
            "block-project-ssh-keys": "TRUE",
        },
        tags=tags,
        # A refresh compares this value with the machine's status, so `pulumi up --refresh` starts a stopped machine.
        # Without a value, the provider neither starts nor stops the machine.
        desired_status=None if kind.elastic else "RUNNING",
        allow_stopping_for_update=True,
        opts=pulumi.ResourceOptions.merge(opts, own),
    )


def scheduling(family: Family, gpus: int, kind: str, *, compact: bool = False) -> compute.InstanceSchedulingArgs:
    """Return a machine's scheduling options. `kind` is on_demand, spot or reservation."""
    if kind == "spot":
        # STOP keeps the disk, name and addresses, so that `pulumi up --refresh` can later start the same node.
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
        # GPU machines cannot migrate to another host, and a compact group's machines must stay together.
        on_host_maintenance="TERMINATE" if gpus or compact else "MIGRATE",
        # A restart could place the machine outside its compact group. Google's Cluster Toolkit does not restart such
        # machines either.
        automatic_restart=not compact,
        preemptible=False,
    )


def image_of(plan: ClusterPlan) -> str:
    """Return the image that new machines boot: projects/<project>/global/images/<name>."""
    spec = plan.platform_spec(GcpSpec)
    return spec.baked_image or spec.base_image(str(plan.image.reference))


def _interfaces(node: NodeArgs, public_ip: pulumi.Input[str] | None) -> list[compute.InstanceNetworkInterfaceArgs]:
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
    named = compute.InstanceReservationAffinitySpecificReservationArgs(
        key="compute.googleapis.com/reservation-name", values=[name]
    )
    return compute.InstanceReservationAffinityArgs(type="SPECIFIC_RESERVATION", specific_reservation=named)


@dataclass(frozen=True, kw_only=True)
class PlacementArgs:
    """Arguments for a compact placement."""

    name: str
    """The policy's name in Google Cloud."""
    region: str


class Placement(pulumi.ComponentResource):
    """A placement policy that keeps a node group's machines close together."""

    policy: pulumi.Output[str]
    """Self link, which is the `placement_policy` of the group's machines."""

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
"""Name of the guest attribute. Google's guest agent also publishes host keys under this name."""
CONSOLE_MARK = "trainyard-hostkey: "
"""Prefix of the console line that contains the key."""

_ATTRIBUTES = "gcp:compute/getInstanceGuestAttributes:getInstanceGuestAttributes"
_CONSOLE = "gcp:compute/getInstanceSerialPort:getInstanceSerialPort"
_CONSOLE_PORT = 1
_LONGEST_PAUSE_SECONDS = 10
_CONSOLE_EVERY = 6
"""The console is read only in every sixth attempt, because each read can return 1 MB."""
_TRUSTED_BYTES = 500_000
"""Half the size of the output that the API keeps, because the API might drop bytes that are not UTF-8."""
_TYPE = "ssh-ed25519 "


@dataclass(frozen=True, kw_only=True)
class _Machine:
    """A machine's identifiers in the API, and the resource that warnings refer to."""

    name: str
    zone: str
    project: str
    resource: compute.Instance | None = None

    def warn(self, message: str) -> None:
        pulumi.log.warn(message, self.resource)


class _UnavailableError(Exception):
    """The machine is stopped or does not exist. The error's text is a warning that contains the fix."""


def host_key(machine: compute.Instance, project: str) -> pulumi.Output[str]:
    """Return the host key ("ssh-ed25519 AAAA..."), or "" if the machine has not published it.

    `up` waits for a new machine's key. In a preview, or if the machine is not new (for example a stopped Spot machine),
    the key is read only once.
    """
    # The instance id is an input, so that a replaced machine's key is read again.
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
    """Return the key, or "" if it is not published within `wait` seconds."""
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
    where = {"name": machine.name, "zone": machine.zone, "project": machine.project, "variableKey": KEY}
    answer = await _invoke(_ATTRIBUTES, where, machine)
    value = str(answer.get("variableValue") or "").strip()
    return _valid(value if value.startswith("ssh-") else f"{_TYPE}{value}")


async def _console(machine: _Machine, *, first_boot: bool, report: bool) -> str:
    """Return the key on the serial console, or "" if there is none or the console is not trusted.

    If `report` is set, an unreadable console or an untrusted key causes a warning.
    """
    where = {"instance": machine.name, "zone": machine.zone, "project": machine.project, "port": _CONSOLE_PORT}
    try:
        answer = await _invoke(_CONSOLE, where, machine)
    except _UnavailableError:
        raise
    except Exception as error:
        # A stopped machine has no console (Google, "View serial port output"). The error's name is unverified.
        if "resourceNotReady" in str(error):
            raise _UnavailableError(f"{machine.name} is stopped. `pulumi up --refresh` starts it") from error
        if report:
            machine.warn(f"{machine.name} has no guest attribute {KEY}, and its console cannot be read: {error}")
        return ""
    contents = str(answer.get("contents") or "")
    lines = (line.rstrip("\r") for line in contents.split("\n"))
    keys = (_valid(line.removeprefix(CONSOLE_MARK)) for line in lines if line.startswith(CONSOLE_MARK))
    # The first valid key is the machine's, because the bootstrap prints it before any user's process runs.
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
    """Return a data source's result. Raises _UnavailableError if the machine does not exist.

    The SDK's typed functions are not used, because their outputs would fail the program after an error, even if the
    error is handled (pulumi 3.250.0, output.py, Output._track; read 2026-11-24).
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
    """Region of the head's static public address, or None for a head without one."""
    data_disk: pulumi.Input[str] | None = None
    """Self link of the data disk with the shared files, or None if they are stored elsewhere."""
    needs: Sequence[pulumi.Resource] = ()
    """Resources that the first boot needs although no input refers to them, for example Cloud NAT."""


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
    """Resources that the first boot needs although no input refers to them, for example Cloud NAT."""


class NodeGroup(pulumi.ComponentResource):
    """Machines of one type with fixed private addresses in existing subnets."""

    machines: Mapping[str, compute.Instance]
    """Mapping from name to machine, in the order of the arguments."""

    def __init__(self, name: str, args: NodeGroupArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:gcp:NodeGroup", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, aliases=moved_from(opts), depends_on=list(args.needs))
        self.machines = {node.name: machine(node, args.machine, child, capacity=args.capacity) for node in args.nodes}
        self.register_outputs(
            {"names": list(self.machines), "instanceIds": [made.instance_id for made in self.machines.values()]}
        )
