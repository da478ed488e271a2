"""ClusterSpec: what a person writes under `trainyard:cluster` in a stack file. Imports no pulumi.

Every field that a person may get wrong says its rule (`description`) and shows a good value (`examples`): the messages
of explain.py are made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializeAsAny, field_validator, model_validator

from components.addresses import Cidr, is_private
from components.catalog import Machine, machines
from components.errors import RuleError

if TYPE_CHECKING:
    from components.plan import ClusterPlan

MAX_GROUPS = 7
"""The network is cut into eight equal blocks: one for the head, one for each node group."""

_WIDEST, _NARROWEST = 12, 24
"""Prefix lengths of the network: the widest is the largest private range that begins with 172."""

_RESERVED_GROUPS = frozenset({"head", "default", "all"})


class Model(BaseModel):
    """Base of everything a person writes: a misspelt key is an error, and inputs never appear in messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    refused_keys: ClassVar[Mapping[str, tuple[str, str]]] = {}
    """Rule and fix for each unknown key that needs its own message instead of "is not a known key"."""


def _not_reserved(name: str) -> str:
    if name in _RESERVED_GROUPS:
        raise RuleError(f"'{name}' is reserved", "name the group for its machines, for example gpu")
    return name


Name = Annotated[
    str,
    Field(
        pattern=r"^[a-z]([a-z0-9-]{0,14}[a-z0-9])?$",
        description="must be 1 to 16 lowercase letters, digits and hyphens, beginning with a letter, not ending in '-'",
        examples=["gpu"],
    ),
]
"""A DNS label of at most 16 characters: host names are built from it."""

GroupName = Annotated[Name, AfterValidator(_not_reserved)]
"""A node group; also the name of its Slurm partition."""

MachineName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{1,62}$",
        description="must be the name of a machine type: letters, digits, hyphens and underscores",
        examples=["vm-gpu2"],
    ),
]
"""A machine type of the platform's catalog."""


HostName = Annotated[
    str,
    Field(
        pattern=r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$",
        description="must be lowercase letters, digits and hyphens, beginning with a letter, not ending in '-'",
        examples=["node1"],
    ),
]
"""A machine that exists already, by its name in the stack file; also its name in the cluster."""


class PlatformSpec(Model):
    """Where the machines come from. Each platform has its own subclass with `provider: Literal[...]`."""

    provider: Annotated[str, Field(description="must be a known platform", examples=["local"])]
    image: Annotated[str, Field(description="must be a known image", examples=["debian-13"])]

    def quota_place(self) -> str:
        """Return where the provider counts quotas, in its own words ("eastus"); empty where it counts none."""
        return ""

    def storage_offer(self, kind: str) -> str | None:
        """Return the catalog's name of a kind of shared storage; None if the platform does not buy it."""
        return None

    def gateway_offer(self) -> str | None:
        """Return the catalog's name of what `access.via: bastion` buys; None if it buys nothing."""
        return None

    def quotas(self, cluster: ClusterSpec, plan: ClusterPlan) -> Mapping[str, int]:
        """Return how much of each quota a cluster needs beside its machines' own, in the quota's unit."""
        return {}

    def known_machines(self) -> Mapping[str, Machine]:
        """Return the machine types that may be named, by name: the catalog's, and any of the platform section."""
        return machines(self.provider)

    def existing(self) -> Mapping[str, IPv4Address] | None:
        """Return the private address of each machine that exists already; None where the platform makes them all."""
        return None


class NetworkSpec(Model):
    """The private network between the nodes."""

    cidr: Cidr = IPv4Network("10.77.0.0/20")

    @field_validator("cidr")
    @classmethod
    def _private_and_roomy(cls, cidr: IPv4Network) -> IPv4Network:
        if not is_private(cidr):
            raise RuleError(
                "must lie in a private range: 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16",
                "choose one there, for example 10.77.0.0/20",
            )
        if not _WIDEST <= cidr.prefixlen <= _NARROWEST:
            raise RuleError(f"the prefix length must be between {_WIDEST} and {_NARROWEST}", "use 10.77.0.0/20")
        return cidr


class HeadSpec(Model):
    """The head node: Slurm controller, accounting, NFS server, login."""

    machine: MachineName
    host: Annotated[HostName | None, Field(examples=["node1"])] = None
    """Which of the machines that exist; without it the platform's first. It also works if a group lists it."""


class CapacitySpec(Model):
    """How a group's machines are bought."""

    kind: Annotated[Literal["on_demand", "spot", "reservation"], Field(examples=["on_demand"])] = "on_demand"
    """Spot machines cost less and may be taken back at any time."""
    reservation: Annotated[
        str | None,
        Field(min_length=1, max_length=512, description="must be a reservation's name or id", examples=["my-a100s"]),
    ] = None

    @model_validator(mode="after")
    def _reservation_of_its_kind(self) -> Self:
        if (self.kind == "reservation") != (self.reservation is not None):
            raise RuleError(
                "kind: reservation and the reservation's name belong together",
                "write {kind: reservation, reservation: my-a100s}",
            )
        return self


def _count_or_hosts(schema: dict[str, Any]) -> None:
    schema["required"].remove("count")
    schema["anyOf"] = [{"required": ["count"]}, {"required": ["hosts"]}]


class GroupSpec(Model):
    """A node group: equal machines, one Slurm partition."""

    model_config = ConfigDict(json_schema_extra=_count_or_hosts)

    machine: MachineName
    count: Annotated[int, Field(ge=1, le=2000, strict=True, description="must be a whole number", examples=[2])]
    hosts: Annotated[tuple[HostName, ...], Field(examples=[["node1", "node2"]])] = ()
    """Which of the machines that exist; `count` follows from it."""
    placement: Annotated[Literal["none", "compact", "same_fabric"], Field(examples=["none"])] = "none"
    """How near its machines stand: anywhere, close together, or in one InfiniBand fabric."""
    capacity: Annotated[CapacitySpec, Field(examples=[{"kind": "on_demand"}])] = CapacitySpec()

    @model_validator(mode="before")
    @classmethod
    def _count_the_hosts(cls, section: Any) -> Any:
        hosts = section.get("hosts") if isinstance(section, dict) else None
        if isinstance(hosts, list) and hosts and "count" not in section:
            return section | {"count": len(hosts)}
        return section

    @model_validator(mode="after")
    def _count_of_the_hosts(self) -> Self:
        if self.hosts and self.count != len(self.hosts):
            raise RuleError(f"is not the number of the listed hosts, {len(self.hosts)}", "remove it", at="count")
        return self


class AccessSpec(Model):
    """Who reaches the head over ssh, and by which way."""

    allow_ssh_from: Annotated[
        tuple[Annotated[Cidr, Field(examples=["203.0.113.0/24"])], ...],
        Field(examples=[["203.0.113.0/24"]]),
    ] = ()
    """Networks from which the head's public address takes ssh."""
    via: Annotated[Literal["public", "bastion", "private"], Field(examples=["public"])] = "public"
    """The head's public address, the cloud's own gateway, or a network of yours that reaches private addresses."""


class SharedStorageSpec(Model):
    """/home and /shared of the cluster."""

    kind: Annotated[
        Literal["head_nfs", "azure_files", "azure_netapp", "filestore", "external"], Field(examples=["head_nfs"])
    ] = "head_nfs"
    """Who serves the files; each cloud has its own, and the head can do it everywhere."""
    size_gib: Annotated[
        int, Field(ge=100, le=102400, strict=True, description="must be a whole number of GiB", examples=[1024])
    ] = 1024
    address: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9.-]{1,253}$", description="must be a host name or address", examples=["10.0.0.9"]),
    ] = None
    path: Annotated[
        str | None,
        Field(pattern=r"^/[A-Za-z0-9._/-]{0,200}$", description="must be an absolute path", examples=["/export"]),
    ] = None

    """What `external` exports; or, on existing hosts, the folder of the head that becomes /shared."""

    @model_validator(mode="after")
    def _address_of_external(self) -> Self:
        external, given = self.kind == "external", self.path is not None
        if (self.address is not None) != external or (given != external and not (given and self.kind == "head_nfs")):
            raise RuleError(
                "address belongs to kind: external, path to kind: external and kind: head_nfs",
                "write {kind: external, address: 10.0.0.9, path: /export}",
            )
        return self


class LimitsSpec(Model):
    """What the cluster must never exceed."""

    max_usd_per_hour: Annotated[
        float | None, Field(gt=0, le=1_000_000, allow_inf_nan=False, description="must be a number", examples=[80])
    ] = None
    """By the known list prices of machines, shared storage and gateway; the preview names what is not known."""


class StorageSpec(Model):
    """Storage that outlives a job."""

    shared: Annotated[SharedStorageSpec, Field(examples=[{"kind": "head_nfs"}])] = SharedStorageSpec()


class ClusterSpec(Model):
    """One cluster, as a stack file describes it."""

    name: Annotated[Name, Field(examples=["yard"])]
    platform: Annotated[SerializeAsAny[PlatformSpec], Field(examples=[{"provider": "local"}])]
    scheduler: Annotated[Literal["slurm", "none"], Field(examples=["slurm"])] = "slurm"
    """Who hands out nodes; without one, `yard` itself starts jobs over ssh."""
    containers: Annotated[Literal["none", "docker", "enroot"], Field(examples=["docker"])] = "none"
    """What starts containers for jobs. With docker, the job user can become root on every node."""
    network: Annotated[NetworkSpec, Field(examples=[{"cidr": "10.77.0.0/20"}])] = NetworkSpec()
    head: Annotated[HeadSpec, Field(examples=[{"machine": "vm-head"}])]
    nodes: Annotated[
        dict[GroupName, Annotated[GroupSpec, Field(examples=[{"machine": "vm-gpu2", "count": 2}])]],
        Field(min_length=1, max_length=MAX_GROUPS, examples=[{"gpu": {"machine": "vm-gpu2", "count": 2}}]),
    ]
    """Node groups by name; each is a Slurm partition."""
    storage: Annotated[StorageSpec, Field(examples=[{"shared": {"kind": "head_nfs"}}])] = StorageSpec()
    access: Annotated[AccessSpec, Field(examples=[{"allow_ssh_from": ["203.0.113.0/24"]}])] = AccessSpec()
    limits: Annotated[LimitsSpec, Field(examples=[{"max_usd_per_hour": 80}])] = LimitsSpec()
    silence: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    pattern=r"^[a-z][a-z0-9-]{1,60}$",
                    description="must be the id of a check, as its warning shows it",
                    examples=["head-gpus-idle"],
                ),
            ],
            ...,
        ],
        Field(examples=[["head-gpus-idle"]]),
    ] = ()
    """Warnings and notes, by the ids of their checks, that this stack does not want to hear again."""

    @model_validator(mode="after")
    def _docker_without_slurm(self) -> Self:
        if self.containers == "docker" and self.scheduler == "slurm":
            rule = "docker starts containers outside of Slurm's steps, which would neither limit nor end them"
            raise RuleError(rule, "use enroot, or scheduler: none", at="containers")
        return self

    @field_validator("platform", mode="before")
    @classmethod
    def _platform_of_its_provider(cls, value: Any) -> Any:
        # The registry knows the union of platforms.
        from components.platforms import platform_spec  # noqa: PLC0415  (the registry imports this module)

        return platform_spec(value)
