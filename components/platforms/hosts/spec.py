"""What a stack file may say about hosts that exist, and the way to the Platform. Importing it starts nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from components.addresses import IpAddress
from components.catalog import Machine
from components.catalog import machines as catalog_machines
from components.errors import Problem, RuleError
from components.platforms.hosts.rules import RULES
from components.spec import ClusterSpec, HostName, MachineName, Model, PlatformSpec

if TYPE_CHECKING:
    from components.checks.base import Check, Planned
    from components.plan import ClusterPlan
    from components.platforms.base import Platform

__all__ = ["Spec", "checks", "platform_class", "problems"]

_DATED = "0000-00-00"
"""What the stack file says of a machine has no date of its own."""

Address = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$",
        description="must be a host name or an IPv4 address",
        examples=["203.0.113.10"],
    ),
]
Login = Annotated[
    str,
    Field(pattern=r"^[a-z_][a-z0-9_-]{0,31}$", description="must be the name of a user", examples=["ubuntu"]),
]
Port = Annotated[
    int, Field(ge=1, le=65535, strict=True, description="must be a whole number from 1 to 65535", examples=[22])
]
KeyFile = Annotated[
    str,
    Field(
        pattern=r"^[^\s]{1,4096}$", description="must be the path of a private key file", examples=["~/.ssh/id_ed25519"]
    ),
]


class Host(Model):
    """One host. What it does not say, `platform` says for all."""

    name: Annotated[HostName | None, Field(examples=["node1"])] = None
    """Its name in the cluster; without one, made of its address."""
    address: Annotated[Address, Field(examples=["203.0.113.10"])]
    """Where ssh reaches it from here, or from the proxy."""
    port: Annotated[Port, Field(examples=[22])] = 22
    user: Annotated[Login | None, Field(examples=["ubuntu"])] = None
    """Who logs in there: root, or one who becomes root without a password."""
    key: Annotated[KeyFile | None, Field(examples=["~/.ssh/id_ed25519"])] = None
    """File of the private key; without one, the ssh agent is asked."""
    host_key: Annotated[str | None, Field(examples=["ssh-ed25519 AAAA..."])] = None
    """Its public host key, as `yard hosts scan` prints it for you to confirm."""
    proxy_jump: Annotated[str | None, Field(examples=["ubuntu@203.0.113.9:22"])] = None
    """A host of this list by its name, or [user@]address[:port] of another."""
    proxy_host_key: Annotated[str | None, Field(examples=["ssh-ed25519 AAAA..."])] = None
    """The proxy's, where it is no host of this list."""
    private_ip: IpAddress
    """Where the other hosts reach it, within cluster.network.cidr."""
    interface: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9._-]{1,15}$", description="must be the name of a network card", examples=["eth1"]),
    ] = None
    """Which card has that address; the bring-up refuses when another has it."""

    @property
    def called(self) -> str:
        """Its name in the cluster."""
        return self.name or f"host-{self.address.lower().replace('.', '-')}"


class MachineFacts(Model):
    """A machine type that the catalog does not have. Every host of the type is compared with it."""

    vcpus: Annotated[int, Field(ge=1, le=4096, strict=True, description="must be a whole number", examples=[64])]
    memory_gib: Annotated[float, Field(ge=0.5, le=65536, description="must be a number of GiB", examples=[512])]
    gpus: Annotated[int, Field(ge=0, le=64, strict=True, description="must be a whole number", examples=[8])] = 0
    gpu_type: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9-]{1,32}$",
            description="must be a word of the name that nvidia-smi shows, in lowercase",
            examples=["h100"],
        ),
    ] = None
    fabric: Annotated[Literal["ethernet", "infiniband", "roce"], Field(examples=["ethernet"])] = "ethernet"
    """What collectives use; the bring-up looks whether it is there."""
    rdma: Annotated[int, Field(ge=0, le=64, strict=True, description="must be a whole number", examples=[8])] = 0
    """How many RDMA ports must be up."""

    def machine(self, name: str) -> Machine:
        """Return it as the catalog would."""
        device = None if not self.gpus else "/dev/fakegpu" if self.gpu_type == "fake" else "/dev/nvidia"
        return Machine(
            name=name,
            provider="hosts",
            vcpus=self.vcpus,
            memory_mib=int(self.memory_gib * 1024),
            gpus=self.gpus,
            gpu_type=self.gpu_type,
            gpu_device=device,
            fabric=self.fabric,
            rdma=self.rdma,
            source="the stack file",
            dated=_DATED,
        )


class Spec(PlatformSpec):
    """`platform:` of a stack of hosts that exist."""

    provider: Literal["hosts"]
    image: Annotated[
        Literal["debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04"], Field(examples=["ubuntu-24.04"])
    ]
    """What all of them run."""
    hosts: Annotated[
        tuple[Host, ...],
        Field(min_length=1, examples=[[{"address": "203.0.113.10", "private_ip": "10.0.0.10"}]]),
    ]
    """Every machine there is: the head by its name, or the first; groups take the others in this order."""
    user: Annotated[Login, Field(examples=["ubuntu"])] = "root"
    """Who logs in where a host names nobody: root, or one who becomes root without a password."""
    key: Annotated[KeyFile | None, Field(examples=["~/.ssh/id_ed25519"])] = None
    """File of the private key where a host names none; without one, the ssh agent is asked."""
    machines: Annotated[
        dict[MachineName, MachineFacts],
        Field(
            default_factory=dict,
            examples=[{"h100": {"vcpus": 192, "memory_gib": 2048, "gpus": 8, "gpu_type": "h100"}}],
        ),
    ]
    """Machine types of these hosts that the catalog does not have."""
    rdma_devices: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    pattern=r"^[A-Za-z0-9_]{1,32}$", description="must be a name that `ibstat -l` or `rdma link` shows"
                ),
            ],
            ...,
        ],
        Field(examples=[["mlx5_0", "mlx5_3"]]),
    ] = ()
    """RDMA devices for collectives, the same on every host; without them, every InfiniBand port that is up."""
    keep_files: bool = True
    """Whether what people made in /shared and in the job user's home stays on the head when the cluster goes."""

    @model_validator(mode="after")
    def _names_differ(self) -> Spec:
        # Everything after this finds hosts by name, so it cannot be left to a check on the plan.
        twice = [name for name, times in Counter(host.called for host in self.hosts).items() if times > 1]
        if twice:
            rule, fix = f"{twice[0]} stands twice", "give each host a name and an address of its own"
            raise RuleError(rule, fix, at="hosts")
        return self

    def known_machines(self) -> Mapping[str, Machine]:
        """See PlatformSpec. A type of the stack file comes before one of the catalog."""
        own = {name: facts.machine(name) for name, facts in self.machines.items()}
        known = {**catalog_machines(self.provider), **own}
        chosen = {"rdma_devices": self.rdma_devices}
        return {name: kind.model_copy(update=chosen if kind.rdma else {}) for name, kind in known.items()}

    def existing(self) -> Mapping[str, IPv4Address]:
        """See PlatformSpec."""
        return {host.called: host.private_ip for host in self.hosts}

    def host(self, name: str) -> Host:
        """Return the host of that name. Raises KeyError."""
        return {host.called: host for host in self.hosts}[name]

    def user_of(self, host: Host) -> str:
        """Return who logs in there."""
        return host.user or self.user

    def key_of(self, host: Host) -> str | None:
        """Return the file of the key that opens it; None: the agent's."""
        return host.key or self.key


def problems(spec: ClusterSpec, plan: ClusterPlan) -> list[Problem]:
    """Return nothing: each rule is a check of its own."""
    return []


def checks() -> tuple[Check[Planned], ...]:
    """Return the rules for hosts that exist."""
    return RULES


def platform_class() -> type[Platform]:
    """Return the Platform; only this imports pulumi."""
    from components.platforms.hosts.platform import HostsPlatform  # noqa: PLC0415

    return HostsPlatform
