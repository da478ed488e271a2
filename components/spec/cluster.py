"""ClusterSpec: the model of `trainyard:cluster` in a stack file. Does not import pulumi.

Error messages (explain.py) contain a field's `description`, which is its rule, and the first of its `examples`.
"""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from components.spec.model import (
    PLATFORMS,
    Cidr,
    GroupName,
    HostName,
    MachineName,
    Model,
    Name,
    PlatformSpec,
    is_private,
)
from components.spec.monitoring import MonitoringSpec
from components.spec.people import FairUseSpec, PlainName, PublicKey, UserSpec
from trainyard.errors import RuleError

MAX_GROUPS = 7
"""The network is divided into eight equal blocks: one for the head, and one for each node group."""

_WIDEST, _NARROWEST = 12, 24
"""Limits of the network's prefix length. The lower limit is that of 172.16.0.0/12, a private range of RFC 1918."""


class NetworkSpec(Model):
    """The private network between the nodes."""

    cidr: Cidr = IPv4Network("10.77.0.0/20")
    """Private range of the nodes, from /12 to /24."""

    @field_validator("cidr")
    @classmethod
    def _check_range(cls, cidr: IPv4Network) -> IPv4Network:
        if not is_private(cidr):
            raise RuleError(
                "must be in a private range: 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16",
                "use a network in one of them, for example 10.77.0.0/20",
            )
        if not _WIDEST <= cidr.prefixlen <= _NARROWEST:
            raise RuleError(f"the prefix length must be between {_WIDEST} and {_NARROWEST}", "use 10.77.0.0/20")
        return cidr


class HeadSpec(Model):
    """The head node: Slurm controller, accounting database, NFS server and login node."""

    machine: MachineName
    """Machine type."""
    host: Annotated[HostName | None, Field(examples=["node1"])] = None
    """Existing host that becomes the head. It also runs jobs if a group lists it. Default: the first."""


class CapacitySpec(Model):
    """Billing for the machines in a node group."""

    kind: Annotated[Literal["on_demand", "spot", "reservation"], Field(examples=["on_demand"])] = "on_demand"
    """The cloud can evict Spot machines at any time."""
    reservation: Annotated[
        str | None,
        Field(
            min_length=1, max_length=512, description="must be the name or id of a reservation", examples=["my-a100s"]
        ),
    ] = None
    """Its name or id, for `kind: reservation`."""

    @model_validator(mode="after")
    def _check_reservation(self) -> Self:
        if (self.kind == "reservation") != (self.reservation is not None):
            raise RuleError(
                "kind: reservation and the key reservation must be used together",
                "write {kind: reservation, reservation: my-a100s}",
            )
        return self


class ElasticSpec(Model):
    """When the head stops the machines of a node group."""

    min: Annotated[int, Field(ge=0, strict=True, description="must be a whole number", examples=[0])] = 0
    """Machines that are always on."""
    idle_minutes: Annotated[
        int, Field(ge=1, le=10_080, strict=True, description="must be a whole number of minutes", examples=[20])
    ] = 20
    """Time without jobs until a machine stops."""


class IdleSpec(Model):
    """When the head stops the whole cluster, including itself."""

    minutes: Annotated[
        int, Field(ge=1, le=10_080, strict=True, description="must be a whole number of minutes", examples=[60])
    ]
    """Time without jobs and SSH connections until the cluster stops."""
    action: Annotated[Literal["stop"], Field(examples=["stop"])] = "stop"


def _count_or_hosts(schema: dict[str, Any]) -> None:
    schema["required"].remove("count")
    schema["anyOf"] = [{"required": ["count"]}, {"required": ["hosts"]}]


class GroupSpec(Model):
    """A node group: machines of one type that form a Slurm partition."""

    model_config = ConfigDict(json_schema_extra=_count_or_hosts)

    machine: MachineName
    """Machine type."""
    count: Annotated[int, Field(ge=1, le=2000, strict=True, description="must be a whole number", examples=[2])]
    """Number of nodes. Required without `hosts`."""
    hosts: Annotated[tuple[HostName, ...], Field(examples=[["node1", "node2"]])] = ()
    """Existing hosts, instead of `count`."""
    placement: Annotated[Literal["none", "compact", "same_fabric"], Field(examples=["none"])] = "none"
    """Anywhere, close together, or in one InfiniBand fabric."""
    capacity: Annotated[CapacitySpec, Field(examples=[{"kind": "on_demand"}])] = CapacitySpec()
    driver: Annotated[Literal["image", "install", "none"] | None, Field(examples=["image"])] = None
    """NVIDIA's driver is in the image, is installed, or is missing."""
    spares: Annotated[int, Field(ge=0, strict=True, description="must be a whole number", examples=[1])] = 0
    """Nodes that only replace lost or drained ones. Requires Slurm."""

    elastic: Annotated[ElasticSpec | None, Field(examples=[{"min": 0, "idle_minutes": 20}])] = None
    """The head stops idle machines and starts them for waiting jobs. Requires Slurm."""

    @model_validator(mode="before")
    @classmethod
    def _set_count(cls, section: Any) -> Any:
        hosts = section.get("hosts") if isinstance(section, dict) else None
        if isinstance(hosts, list) and hosts and "count" not in section:
            return section | {"count": len(hosts)}
        return section

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        if self.hosts and self.count != len(self.hosts):
            raise RuleError(f"must be {len(self.hosts)}, the number of listed hosts", "remove it", at="count")
        if self.spares >= self.count:
            raise RuleError("must be less than the number of nodes, because jobs need a node", "lower it", at="spares")
        if self.elastic is not None:
            self._check_elastic(self.elastic)
        return self

    def _check_elastic(self, elastic: ElasticSpec) -> None:
        if elastic.min >= self.count:
            rule = f"must be less than the number of nodes ({self.count}), because no machine would stop"
            raise RuleError(rule, "lower it, or remove elastic", at="elastic.min")
        if self.spares:
            rule = "spares are always on, but an elastic group's idle machines are stopped"
            raise RuleError(rule, "use spares or elastic", at="spares")
        if self.capacity.kind == "reservation":
            rule = "a reservation costs the same while its machines are stopped"
            raise RuleError(rule, "remove elastic, or use capacity: {kind: on_demand}", at="elastic")


class AccessSpec(Model):
    """SSH access to the head node."""

    allow_ssh_from: Annotated[
        tuple[Annotated[Cidr, Field(examples=["203.0.113.0/24"])], ...],
        Field(examples=[["203.0.113.0/24"]]),
    ] = ()
    """CIDR ranges that may connect to the head. Required on clouds with `via: public`."""
    via: Annotated[Literal["public", "bastion", "private"], Field(examples=["public"])] = "public"
    """SSH uses the head's public address, the cloud's SSH gateway, or the private address."""


class SshSpec(Model):
    """SSH logins of people."""

    ca: Annotated[PublicKey | None, Field(examples=["ssh-ed25519 AAAA... ca@example.org"])] = None
    """Public key of an existing certificate authority. A certificate's principal must be the name in `users`."""


class SharedStorageSpec(Model):
    """Storage for /home and /shared."""

    kind: Annotated[
        Literal["head_nfs", "azure_files", "azure_netapp", "filestore", "external"], Field(examples=["head_nfs"])
    ] = "head_nfs"
    """With `head_nfs`, the head is the file server."""
    size_gib: Annotated[
        int, Field(ge=100, le=102400, strict=True, description="must be a whole number of GiB", examples=[1024])
    ] = 1024
    address: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9.-]{1,253}$", description="must be a host name or address", examples=["10.0.0.9"]),
    ] = None
    """The server for `kind: external`."""
    path: Annotated[
        str | None,
        Field(pattern=r"^/[A-Za-z0-9._/-]{0,200}$", description="must be an absolute path", examples=["/export"]),
    ] = None
    """The export for `kind: external`, or the folder of an existing head that becomes /shared."""

    @model_validator(mode="after")
    def _check_address_and_path(self) -> Self:
        external, given = self.kind == "external", self.path is not None
        if (self.address is not None) != external or (given != external and not (given and self.kind == "head_nfs")):
            raise RuleError(
                "address needs kind: external, and path needs kind: external or kind: head_nfs",
                "write {kind: external, address: 10.0.0.9, path: /export}",
            )
        return self


_Limited = dict[PlainName, Annotated[FairUseSpec, Field(examples=[{"gpus": 8}])]]


class IdleGpuSpec(Model):
    """What happens to jobs, sessions and notebooks that do not use their GPUs. Requires Slurm and NVIDIA's driver."""

    minutes: Annotated[
        int, Field(ge=10, le=10_080, strict=True, description="must be a whole number of minutes", examples=[30])
    ]
    """How long all GPUs of a job may have a utilization of 0 %."""
    action: Annotated[Literal["warn", "end", "requeue"], Field(examples=["end"])] = "warn"
    """What follows the warning. `requeue` ends jobs that Slurm cannot requeue, such as sessions."""


class LimitsSpec(Model):
    """Limits for the cluster, and for the people and Slurm accounts that use it."""

    max_usd_per_hour: Annotated[
        float | None, Field(gt=0, le=1_000_000, allow_inf_nan=False, description="must be a number", examples=[80])
    ] = None
    """The most that machines, shared storage and gateway may cost at known list prices."""
    max_usd_per_month: Annotated[int | None, Field(ge=1, le=100_000_000, examples=[20_000])] = None
    """The most in a calendar month (UTC), as `yard cost` computes it. When it is spent, no new jobs start, and idle
    machines of elastic groups stop. Requires Slurm."""
    when_spent: Annotated[Literal["finish", "requeue"], Field(examples=["finish"])] = "finish"
    """Whether running jobs in elastic groups are requeued when the month's sum is spent."""
    idle_gpu: Annotated[IdleGpuSpec | None, Field(examples=[{"minutes": 30, "action": "end"}])] = None
    """Jobs that do not use their GPUs are warned, ended or requeued. Requires Slurm."""
    each_person: Annotated[FairUseSpec, Field(examples=[{"gpus": 8}])] = FairUseSpec()
    """The limits of each person. Keys in `people` replace them."""
    people: _Limited = Field(default_factory=dict, examples=[{"ann": {"gpus": 8}}])
    """Limits by name, over all accounts of a person. `null` removes a limit of `each_person`."""
    accounts: _Limited = Field(default_factory=dict, examples=[{"vision": {"gpus": 16}}])
    """Additional limits of Slurm accounts, by name."""

    def of_person(self, name: str) -> FairUseSpec:
        """Return the limits of a person."""
        own = self.people.get(name, FairUseSpec())
        return self.each_person.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


class GatesSpec(Model):
    """What a cluster must fulfil to be ready, besides running a task on every node."""

    nccl_busbw: Annotated[
        Literal["default", "off"] | Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False, strict=True)],
        Field(description="must be default, off or the minimum bus bandwidth in GB/s", examples=["default", 185]),
    ] = "default"
    """The lowest all-reduce bandwidth: that of the machine type, or a number in GB/s."""
    unmeasured: Annotated[Literal["warn", "drain"], Field(examples=["warn"])] = "warn"
    """What happens to a node whose all-reduce does not start."""

    @field_validator("nccl_busbw", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads `off` as false


Mirror = Annotated[
    str | None,
    Field(
        pattern=r"^https?://[A-Za-z0-9.:_~-]+(/[A-Za-z0-9._~-]+)*$",
        description="must be an http or https URL without a final slash",
        examples=["http://mirror.example.org/debian"],
    ),
]


class MirrorsSpec(Model):
    """Mirrors of package archives."""

    debian: Mirror = None
    debian_security: Mirror = None
    ubuntu: Mirror = None
    nvidia_cuda: Mirror = None
    nvidia_container_toolkit: Mirror = None
    nvidia_enroot: Mirror = None
    nvidia_pyxis: Mirror = None
    google_cloud: Mirror = None
    pypi: Annotated[Mirror, Field(examples=["https://mirror.example.org/pypi/simple"])] = None
    """The Python package index of pip."""

    def by_archive(self) -> dict[str, str]:
        """Return a mapping from archive to its mirror's URL, in the order of the fields."""
        return {name: url for name, url in self.model_dump().items() if url is not None}


class StorageSpec(Model):
    """The cluster's storage."""

    shared: Annotated[SharedStorageSpec, Field(examples=[{"kind": "head_nfs"}])] = SharedStorageSpec()


def _or_boolean(schema: dict[str, Any]) -> None:
    schema["anyOf"] = [{"type": "boolean"}, {"$ref": schema.pop("$ref")}]


class ClusterSpec(Model):
    """A cluster."""

    name: Annotated[Name, Field(examples=["yard"])]
    """Hosts are named `<name>-head` and `<name>-<group>-<i>`."""
    platform: Annotated[SerializeAsAny[PlatformSpec], Field(examples=[{"provider": "local"}])]
    scheduler: Annotated[Literal["slurm", "none"], Field(examples=["slurm"])] = "slurm"
    """With `none`, `yard` starts jobs over SSH."""
    containers: Annotated[Literal["none", "docker", "enroot"] | None, Field(examples=["docker"])] = None
    """`docker` requires `scheduler: none`, and lets the job user become root on every node. Default:
    `enroot` on created machines with NVIDIA GPUs, otherwise `none`."""
    network: Annotated[NetworkSpec, Field(examples=[{"cidr": "10.77.0.0/20"}])] = NetworkSpec()
    head: Annotated[HeadSpec, Field(examples=[{"machine": "vm-head"}])]
    nodes: Annotated[
        dict[GroupName, Annotated[GroupSpec, Field(examples=[{"machine": "vm-gpu2", "count": 2}])]],
        Field(min_length=1, max_length=MAX_GROUPS, examples=[{"gpu": {"machine": "vm-gpu2", "count": 2}}]),
    ]
    """Node groups (Slurm partitions) by name."""
    storage: Annotated[StorageSpec, Field(examples=[{"shared": {"kind": "head_nfs"}}])] = StorageSpec()
    access: Annotated[AccessSpec, Field(examples=[{"allow_ssh_from": ["203.0.113.0/24"]}])] = AccessSpec()
    limits: Annotated[LimitsSpec, Field(examples=[{"max_usd_per_hour": 80}])] = LimitsSpec()
    gates: Annotated[GatesSpec, Field(examples=[{"nccl_busbw": "default"}])] = GatesSpec()
    idle: Annotated[IdleSpec | None, Field(examples=[{"minutes": 60, "action": "stop"}])] = None
    """An idle cluster stops until `yard wake`. Requires that all node groups are elastic."""
    repair: Annotated[Literal["ask", "auto"], Field(examples=["ask"])] = "ask"
    """With `auto` and Slurm, `yard heal --auto` reboots and replaces machines."""
    mirrors: Annotated[MirrorsSpec, Field(examples=[{"debian": "http://mirror.example.org/debian"}])] = MirrorsSpec()
    users: Annotated[
        tuple[UserSpec, ...],
        Field(max_length=500, examples=[[{"name": "ann", "ssh_keys": ["ssh-ed25519 AAAA... ann@laptop"]}]]),
    ] = ()
    """People with their own accounts. Requires Slurm. Not on existing hosts."""
    ssh: Annotated[SshSpec, Field(examples=[{"ca": "ssh-ed25519 AAAA... ca@example.org"}])] = SshSpec()
    silence: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    pattern=r"^[a-z][a-z0-9-]{1,60}$",
                    description="must be the id of a check, which is shown in brackets after each warning",
                    examples=["head-gpus-idle"],
                ),
            ],
            ...,
        ],
        Field(examples=[["head-gpus-idle"]]),
    ] = ()
    """IDs of checks whose warnings and notes are hidden."""
    monitoring: Annotated[MonitoringSpec, Field(examples=[{"retention_days": 15}], json_schema_extra=_or_boolean)] = (
        MonitoringSpec()
    )
    """`true`, `false`, or a section with these keys."""

    @model_validator(mode="after")
    def _check_scheduler(self) -> Self:
        if self.scheduler == "slurm":
            if self.containers == "docker":
                rule = "docker starts containers outside Slurm's job steps, so Slurm could neither limit nor end them"
                raise RuleError(rule, "use enroot, or scheduler: none", at="containers")
            return self
        fix = "remove it, or use scheduler: slurm"
        if self.repair == "auto":
            rule = "faults are recorded and nodes are drained by Slurm, and this cluster has no scheduler"
            raise RuleError(rule, fix, at="repair")
        if self.users:
            rule = "Slurm separates the jobs of different people, and this cluster has no scheduler"
            raise RuleError(rule, fix, at="users")
        if self.limits.max_usd_per_month is not None:
            rule = "Slurm starts no jobs when the limit is spent, and this cluster has no scheduler"
            raise RuleError(rule, fix, at="limits.max_usd_per_month")
        if self.limits.idle_gpu is not None:
            rule = "the head knows from Slurm which jobs hold GPUs, and this cluster has no scheduler"
            raise RuleError(rule, fix, at="limits.idle_gpu")
        for name in (name for name, group in self.nodes.items() if group.spares):
            rule = "Slurm holds the spares back, and this cluster has no scheduler"
            raise RuleError(rule, fix, at=f"nodes.{name}.spares")
        for name in (name for name, group in self.nodes.items() if group.elastic is not None):
            rule = "Slurm decides which machines are needed, and this cluster has no scheduler"
            raise RuleError(rule, fix, at=f"nodes.{name}.elastic")
        return self

    @model_validator(mode="after")
    def _check_idle(self) -> Self:
        if self.idle is not None and (fixed := [name for name, group in self.nodes.items() if group.elastic is None]):
            rule = f"only the machines of elastic groups can be stopped, and {', '.join(fixed)} is not elastic"
            raise RuleError(rule, "add `elastic: {min: 0}` to each node group, or remove it", at="idle")
        return self

    @model_validator(mode="after")
    def _check_authority(self) -> Self:
        if self.ssh.ca is not None and not self.users:
            rule = "permits logins of people, and this cluster has no `users`"
            raise RuleError(rule, "add users, or remove it", at="ssh.ca")
        return self

    @field_validator("platform", mode="before")
    @classmethod
    def _parse_platform(cls, value: Any, info: ValidationInfo) -> Any:
        context = info.context or {}
        return value if isinstance(value, PlatformSpec) else context[PLATFORMS](value, context)
