"""ClusterSpec: what a person writes under `trainyard:cluster` in a stack file. Imports no pulumi."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SerializeAsAny, field_validator

_RESERVED_GROUPS = frozenset({"head", "default", "all"})


class Model(BaseModel):
    """Base of everything a person writes: a misspelt key is an error, and inputs never appear in messages."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


def _not_reserved(name: str) -> str:
    if name in _RESERVED_GROUPS:
        raise ValueError(f"'{name}' is reserved; name the group for its machines, for example 'gpu'")
    return name


Name = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,14}[a-z0-9])?$")]
"""A DNS label of at most 16 characters: host names are built from it."""

GroupName = Annotated[Name, AfterValidator(_not_reserved)]
"""A node group; also the name of its Slurm partition."""

MachineName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{1,62}$")]
"""A machine type of the platform's catalog, for example 'vm-gpu2'."""


class PlatformSpec(Model):
    """Where the machines come from. Each platform has its own subclass with `provider: Literal[...]`."""

    provider: str


class NetworkSpec(Model):
    """The private network between the nodes."""

    cidr: IPv4Network = IPv4Network("10.77.0.0/20")

    @field_validator("cidr")
    @classmethod
    def _private_and_roomy(cls, cidr: IPv4Network) -> IPv4Network:
        if not cidr.is_private:
            raise ValueError("must be a private range (RFC 1918), for example 10.77.0.0/20")
        if not 12 <= cidr.prefixlen <= 24:
            raise ValueError("the prefix length must be between 12 and 24, for example 10.77.0.0/20")
        return cidr


class HeadSpec(Model):
    """The head node: Slurm controller, accounting, NFS server, login."""

    machine: MachineName


class GroupSpec(Model):
    """A node group: equal machines, one Slurm partition."""

    machine: MachineName
    count: Annotated[int, Field(ge=1, le=2000, strict=True)]


class SharedStorageSpec(Model):
    """/home and /shared of the cluster."""

    kind: Literal["head_nfs"] = "head_nfs"


class StorageSpec(Model):
    """Storage that outlives a job."""

    shared: SharedStorageSpec = SharedStorageSpec()


class ClusterSpec(Model):
    """One cluster, as a stack file describes it."""

    name: Name
    platform: SerializeAsAny[PlatformSpec]
    scheduler: Literal["slurm"] = "slurm"
    network: NetworkSpec = NetworkSpec()
    head: HeadSpec
    nodes: Annotated[dict[GroupName, GroupSpec], Field(min_length=1, max_length=7)]
    storage: StorageSpec = StorageSpec()

    @field_validator("platform", mode="before")
    @classmethod
    def _platform_of_its_provider(cls, value: Any) -> Any:
        # The union of platforms lives in their registry, so that adding one touches nothing here.
        from components.platforms import platform_spec  # noqa: PLC0415  (the registry imports this module)

        return platform_spec(value)
