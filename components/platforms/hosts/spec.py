"""HostsSpec: the `platform:` section of a stack with existing hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from components.catalog import Machine
from components.catalog import machines as catalog_machines
from components.spec.model import ExistingHostsSpec, HostName, IpAddress, MachineName, Model
from trainyard.errors import RuleError

_DATED = "0000-00-00"
"""Placeholder for the date of machine types in the stack file, which have no date."""

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
    """An existing host. `user` and `key` default to the fields of `platform`."""

    name: Annotated[HostName | None, Field(examples=["node1"])] = None
    """Default: `host-` and the address."""
    address: Annotated[Address, Field(examples=["203.0.113.10"])]
    """SSH address."""
    port: Annotated[Port, Field(examples=[22])] = 22
    user: Annotated[Login | None, Field(examples=["ubuntu"])] = None
    """SSH user. Default: `platform.user`."""
    key: Annotated[KeyFile | None, Field(examples=["~/.ssh/id_ed25519"])] = None
    """Private key file. Default: `platform.key`."""
    host_key: Annotated[str | None, Field(examples=["ssh-ed25519 AAAA..."])] = None
    """Public SSH host key, which `yard hosts scan` prints."""
    proxy_jump: Annotated[str | None, Field(examples=["ubuntu@203.0.113.9:22"])] = None
    """Jump host: the name of a listed host, or [user@]address[:port]."""
    proxy_host_key: Annotated[str | None, Field(examples=["ssh-ed25519 AAAA..."])] = None
    """Host key of a jump host that is not listed."""
    private_ip: IpAddress
    """Private address, in `network.cidr`."""
    interface: Annotated[
        str | None,
        Field(pattern=r"^[A-Za-z0-9._-]{1,15}$", description="must be the name of a network card", examples=["eth1"]),
    ] = None
    """Interface that must have the private address."""

    @property
    def called(self) -> str:
        """Return the host's name in the cluster."""
        return self.name or f"host-{self.address.lower().replace('.', '-')}"


class MachineFacts(Model):
    """A machine type that is not in the catalog. The survey compares the hosts with their machine types."""

    vcpus: Annotated[int, Field(ge=1, le=4096, strict=True, description="must be a whole number", examples=[64])]
    memory_gib: Annotated[float, Field(ge=0.5, le=65536, description="must be a number of GiB", examples=[512])]
    gpus: Annotated[int, Field(ge=0, le=64, strict=True, description="must be a whole number", examples=[8])] = 0
    gpu_type: Annotated[
        str | None,
        Field(
            pattern=r"^[a-z0-9-]{1,32}$",
            description="must be a word in the GPU name that nvidia-smi prints, in lowercase",
            examples=["h100"],
        ),
    ] = None
    """A word in nvidia-smi's GPU name, in lowercase."""
    fabric: Annotated[Literal["ethernet", "infiniband", "roce"], Field(examples=["ethernet"])] = "ethernet"
    """Network for collectives."""
    rdma: Annotated[int, Field(ge=0, le=64, strict=True, description="must be a whole number", examples=[8])] = 0
    """RDMA ports that must be up."""

    def as_machine(self, name: str) -> Machine:
        """Return the machine type in the catalog's format."""
        device = None if not self.gpus else "/dev/fakegpu" if self.gpu_type == "fake" else "/dev/nvidia"
        return Machine(
            name=name,
            provider="hosts",
            memory_mib=int(self.memory_gib * 1024),
            gpu_device=device,
            source="the stack file",
            dated=_DATED,
            **self.model_dump(exclude={"memory_gib"}),
        )


_Argument = Annotated[
    str,
    Field(
        pattern=r"^[ -~]{1,200}$",
        description="must be at most 200 printable ASCII characters",
        examples=["--site"],
    ),
]
_PROGRAM = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._+-]*)+")
"""An absolute path without `..`. The head also refuses links (repair/command.py)."""


class HostsSpec(ExistingHostsSpec):
    """The `platform:` section of a stack with existing hosts."""

    provider: Literal["hosts"]
    image: Annotated[
        Literal["debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04"], Field(examples=["ubuntu-24.04"])
    ]
    """Operating system."""
    hosts: Annotated[
        tuple[Host, ...],
        Field(min_length=1, examples=[[{"address": "203.0.113.10", "private_ip": "10.0.0.10"}]]),
    ]
    """All hosts."""
    user: Annotated[Login, Field(examples=["ubuntu"])] = "root"
    """Root, or a user with passwordless sudo."""
    key: Annotated[KeyFile | None, Field(examples=["~/.ssh/id_ed25519"])] = None
    """Private key file, whose content the state stores as a secret. Default: the keys in the SSH agent."""
    machines: Annotated[
        dict[MachineName, MachineFacts],
        Field(
            default_factory=dict,
            examples=[{"h100": {"vcpus": 192, "memory_gib": 2048, "gpus": 8, "gpu_type": "h100"}}],
        ),
    ]
    """Machine types that are not in the catalog."""
    rdma_devices: Annotated[
        tuple[
            Annotated[
                str,
                Field(
                    pattern=r"^[A-Za-z0-9_]{1,32}$", description="must be a name that `ibstat -l` or `rdma link` prints"
                ),
            ],
            ...,
        ],
        Field(examples=[["mlx5_0", "mlx5_3"]]),
    ] = ()
    """RDMA devices for collectives. Default: all InfiniBand ports that are up."""
    keep_files: bool = True
    """Whether `destroy` keeps /shared and the job user's home."""
    power_command: Annotated[
        tuple[_Argument, ...], Field(max_length=16, examples=[["/usr/local/sbin/power-node"]])
    ] = ()
    """Path and first arguments (not secret) of the site's program that turns hosts of elastic groups on and off."""

    @field_validator("power_command")
    @classmethod
    def _names_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and _PROGRAM.fullmatch(command[0]) is None:
            rule = "the first entry must be the absolute path of a program on the head"
            raise RuleError(rule, "write for example [/usr/local/sbin/power-node]")
        return command

    @model_validator(mode="after")
    def _names_differ(self) -> HostsSpec:
        # A check of the plan would come too late, because the plan looks up hosts by name.
        twice = [name for name, times in Counter(host.called for host in self.hosts).items() if times > 1]
        if twice:
            rule, fix = f"{twice[0]} is the name of two hosts", "give each host a different name and address"
            raise RuleError(rule, fix, at="hosts")
        return self

    def machine_types(self) -> Mapping[str, Machine]:
        # Machine types in the stack file take precedence over the catalog.
        own = {name: facts.as_machine(name) for name, facts in self.machines.items()}
        known = {**catalog_machines(self.provider), **own}
        chosen = {"rdma_devices": self.rdma_devices}
        return {name: kind.model_copy(update=chosen if kind.rdma else {}) for name, kind in known.items()}

    def addresses(self) -> Mapping[str, IPv4Address]:
        return {host.called: host.private_ip for host in self.hosts}

    def host(self, name: str) -> Host:
        """Return the host with this name. Raises KeyError."""
        return {host.called: host for host in self.hosts}[name]

    def user_of(self, host: Host) -> str:
        return host.user or self.user

    def key_of(self, host: Host) -> str | None:
        """Return a host's private key file, or None to use the SSH agent."""
        return host.key or self.key
