"""What a stack file may say about the GCP platform, and the way to its rules and its Platform. Imports no SDK."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator

from components.addresses import Cidr, is_private
from components.errors import RuleError
from components.platforms.gcp.zones import known_zone
from components.spec import Model, PlatformSpec

if TYPE_CHECKING:
    from components.checks.base import Check, Planned
    from components.errors import Problem
    from components.plan import ClusterPlan
    from components.platforms.base import Platform
    from components.spec import ClusterSpec

__all__ = ["FilestoreSpec", "Spec", "checks", "platform_class", "problems"]

FilestoreTier = Literal["BASIC_HDD", "BASIC_SSD", "ZONAL", "REGIONAL", "ENTERPRISE"]

Zone = Annotated[
    str,
    Field(
        pattern=r"^[a-z]+-[a-z]+[0-9]{1,2}-[a-z]$",
        description="must be a zone: a region, a hyphen and a letter",
        examples=["us-central1-a"],
    ),
    AfterValidator(known_zone),
]

_NO_FLEX_START = (
    "Flex-start is not supported: Google queues such requests for a managed instance group, and this platform creates "
    "single instances, which cannot wait in that queue",
    "remove it and set the group's capacity to {kind: spot} or {kind: reservation, reservation: <name>}",
)
"""Sources, read 2026-11-22: Google, "About resize requests in a MIG"; GoogleCloudPlatform/cluster-toolkit@1047080,
docs/slurm-dws-flex.md. Instance of the Pulumi SDK 10.2.0 has no requestValidForDuration."""


class FilestoreSpec(Model):
    """How the shared storage `filestore` is made; its size is in `storage.shared`."""

    tier: FilestoreTier = "ZONAL"
    """Its speed, its price, and whether a zone or the region must fail to lose it."""
    zone: Annotated[Zone | None, Field(examples=["us-central1-a"])] = None
    """Where it stands, if not in the nodes' own zone. Tiers with a region's reach stand in the zone's region."""


class Spec(PlatformSpec):
    """`platform:` of a GCP stack."""

    refused_keys: ClassVar[Mapping[str, tuple[str, str]]] = {"flex_start": _NO_FLEX_START}

    provider: Literal["gcp"]
    project: Annotated[
        str,
        Field(
            pattern=r"^[a-z][a-z0-9-]{4,28}[a-z0-9]$",
            description="must be a project id: 6 to 30 lowercase letters, digits and hyphens",
            examples=["my-project-123456"],
        ),
    ]
    zone: Annotated[Zone, Field(examples=["us-central1-a"])]
    """All machines stand in it; the region is the zone's."""
    image: Literal["gcp-ubuntu-24.04-nvidia-580"] = "gcp-ubuntu-24.04-nvidia-580"
    custom_image: Annotated[
        str | None,
        Field(
            pattern=r"^projects/[a-z0-9.:-]+/global/images/[a-z0-9-]+$",
            description="must be one image, not a family: projects/<project>/global/images/<name>",
            examples=["projects/my-project-123456/global/images/tcpx-v3"],
        ),
    ] = None
    """An image of your own, made from `image`: what runs on it is configured as on that one."""
    boot_disk_gib: Annotated[int, Field(ge=50, le=65536, strict=True, examples=[200])] = 200
    """Of every machine."""
    boot_disk_type: Literal["pd-balanced", "pd-ssd", "hyperdisk-balanced"] | None = None
    """For every machine; if not given, each family's own first choice."""
    tier_1: bool = True
    """Whether machines without GPUs that can have Tier_1 networking get it (it costs extra)."""
    fabric_cidr: Annotated[Cidr, Field(examples=["10.192.0.0/10"])] = IPv4Network("10.192.0.0/10")
    """Where the networks of the GPUs' own cards lie; nothing is routed between them and the rest."""
    filestore: Annotated[FilestoreSpec, Field(examples=[{"tier": "ZONAL"}])] = FilestoreSpec()
    protect_storage: bool = True
    """Whether Filestore or the head's data disk survives `destroy`. To lose them on purpose: false, `up`, `destroy`."""
    iap_port: Annotated[int, Field(ge=1024, le=65535, strict=True)] = 22200
    """The loopback port of the tunnel to the head while `pulumi up` runs, with `access.via: bastion`."""

    @field_validator("fabric_cidr")
    @classmethod
    def _private(cls, cidr: IPv4Network) -> IPv4Network:
        if not is_private(cidr):
            raise RuleError("must lie in a private range", "use 10.192.0.0/10")
        return cidr

    @property
    def region(self) -> str:
        """The zone's region."""
        return region_of(self.zone)

    def storage_offer(self, kind: str) -> str | None:
        """See PlatformSpec."""
        return {"head_nfs": "pd-ssd", "filestore": f"filestore-{self.filestore.tier}"}.get(kind)

    def quotas(self, cluster: ClusterSpec, plan: ClusterPlan) -> Mapping[str, int]:
        """Return the needs for disks, Filestore, networks and addresses."""
        from components.platforms.gcp.quotas import stack_quotas  # noqa: PLC0415  (it imports the layout)

        return stack_quotas(self, cluster, plan)

    def quota_place(self) -> str:
        """Return the region."""
        return self.region


def region_of(zone: str) -> str:
    """Return the region of a zone ("us-central1-a" is in "us-central1")."""
    return zone.rpartition("-")[0]


def problems(spec: ClusterSpec, plan: ClusterPlan) -> list[Problem]:
    """Return nothing: every rule of GCP is a check of its own."""
    return []


def checks() -> tuple[Check[Planned], ...]:
    """Return the rules of GCP. They know the Spec here, so they are imported when asked for."""
    from components.platforms.gcp.rules import RULES  # noqa: PLC0415

    return RULES


def platform_class() -> type[Platform]:
    """Return the Platform; only this imports pulumi and its GCP SDK."""
    from components.platforms.gcp.platform import GcpPlatform  # noqa: PLC0415

    return GcpPlatform
