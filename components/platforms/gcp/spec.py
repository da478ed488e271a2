"""GcpSpec: the `platform:` section of a GCP stack, and the machine families and zones that it uses. Imports no SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from ipaddress import IPv4Network
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from components.catalog import Fact, Machine, machines, read_rows
from components.platforms.published import Places, read_published
from components.spec.model import BAKED_NAME, Cidr, CloudSpec, Model, is_private, used_machines
from trainyard.errors import CatalogError, RuleError


class Nics(BaseModel):
    """Number of a machine's network interfaces of each type."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    gvnic: Annotated[int, Field(ge=1)]
    rdma: Annotated[int, Field(ge=0)]


class Family(Fact):
    """A machine family."""

    nics: Nics
    mtu: int
    boot_disks: tuple[str, ...]
    """Supported types of boot disks, starting with the default type."""
    compact: bool
    """Whether the family supports compact placement policies."""
    zones: tuple[str, ...] = ()
    """Zones that offer the family, or an empty tuple if no source lists them."""
    tier_1_from_vcpus: int | None = None
    """Minimum number of vCPUs for Tier_1 networking, or None if the family does not support it."""
    dense_reservations: bool = False
    """Whether reservations are dense, which means that their machines are close together without a placement policy."""
    on_demand_seen: bool = True
    """Whether one of Google's deployment examples uses the family on demand."""
    stock_image: bool = True
    """Whether the pinned image supports the fabric. If not, the stack needs a custom image."""
    unverified: tuple[str, ...] = ()
    """Names of the fields whose values have no public source."""


@cache
def families() -> dict[str, Family]:
    """Return the catalog's families, keyed by name. Raises CatalogError if the file does not match its model."""
    return read_rows("gcp_families.yaml", Family)


def family_of(machine: str) -> Family:
    """Return a machine type's family, for example a3-megagpu for a3-megagpu-8g.

    Raises CatalogError if the catalog does not contain the family.
    """
    family = families().get(machine.rpartition("-")[0])
    if family is None:
        raise CatalogError(f"components/catalog/gcp_families.yaml has no family for the machine type {machine}; add it")
    return family


class ZoneFacts(Places):
    """The zones, as a mapping from region to zone letters. For example, "abc" stands for the zones a, b and c."""

    zones: dict[str, Annotated[str, Field(pattern=r"^[a-z]+$")]]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{region}-{letter}" for region, letters in self.zones.items() for letter in letters)


@cache
def zone_facts() -> ZoneFacts:
    """Return the catalog's zones. Raises CatalogError if the file does not match its model."""
    return read_published("gcp_zones.yaml", ZoneFacts)


def zones_with(names: Iterable[str]) -> tuple[str, ...]:
    """Return the zones that offer all of these machine types, or all zones if no zone offers them all.

    Unknown types and types without a list of zones are ignored.
    """
    return zone_facts().in_all(zones for name in names if name in machines("gcp") and (zones := family_of(name).zones))


def known_zone(name: str, info: ValidationInfo) -> str:
    """Return `name` if it is a zone. Otherwise, raise RuleError and suggest a zone that suits the stack."""
    usable = zones_with(used_machines(info))
    if usable == zone_facts().names:
        # Some zones need Google's approval. The zones of the families have no such condition.
        usable = tuple(zone for zone in usable if any(zone in family.zones for family in families().values()))
    near = [zone for zone in usable if region_of(zone) == region_of(name)]
    return zone_facts().check(name, usable, "a Google Cloud zone", "gcloud compute zones list", near)


PORTS_PER_VM = 1024
"""Number of Cloud NAT ports per machine. The default of 64 is too low for pulling containers or installing packages."""

FilestoreTier = Literal["BASIC_HDD", "BASIC_SSD", "ZONAL", "REGIONAL", "ENTERPRISE"]

REGIONAL_TIERS = frozenset({"REGIONAL", "ENTERPRISE"})
"""Filestore tiers whose files Google replicates across three zones."""

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
    "Flex-start is not supported: Google queues such requests for managed instance groups, but this platform creates "
    "single instances, which cannot wait in that queue",
    "remove it and set the group's capacity to {kind: spot} or {kind: reservation, reservation: <name>}",
)
"""Sources, read 2026-11-22: Google, "About resize requests in a MIG"; GoogleCloudPlatform/cluster-toolkit@1047080,
docs/slurm-dws-flex.md. The Instance resource in Pulumi SDK 10.2.0 has no requestValidForDuration."""


class FilestoreSpec(Model):
    """Settings for the shared storage `filestore`. Its size is in `storage.shared`."""

    tier: FilestoreTier = "ZONAL"
    """Determines performance, price and replication across zones."""
    zone: Annotated[Zone | None, Field(examples=["us-central1-a"])] = None
    """Default: the nodes' zone. Regional tiers use its region."""


class GcpSpec(CloudSpec):
    """The `platform:` section of a GCP stack."""

    beside_machines: ClassVar[frozenset[str]] = frozenset(
        {"baked_image", "custom_image", "filestore", "iap_port", "protect_storage"}
    )

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
    """Project id."""
    zone: Annotated[Zone, Field(examples=["us-central1-a"])]
    """Zone of all machines."""
    image: Literal["gcp-ubuntu-24.04-nvidia-580"] = "gcp-ubuntu-24.04-nvidia-580"
    custom_image: Annotated[
        str | None,
        Field(
            pattern=r"^projects/[a-z0-9.:-]+/global/images/[a-z0-9-]+$",
            description="must be one image, not a family: projects/<project>/global/images/<name>",
            examples=["projects/my-project-123456/global/images/tcpx-v3"],
        ),
    ] = None
    """Image that was built from `image`."""
    baked_image: Annotated[
        str | None,
        Field(
            pattern=rf"^projects/[a-z0-9.:-]+/global/images/{BAKED_NAME}$",
            description="must be the name of an image, which `yard bake` prints",
            examples=["projects/my-project-123456/global/images/trainyard-ubuntu-24-04-0123456789abcdef"],
        ),
    ] = None
    """Image that `yard bake` built."""
    boot_disk_gib: Annotated[int, Field(ge=50, le=65536, strict=True, examples=[200])] = 200
    """Size of each boot disk."""
    boot_disk_type: Literal["pd-balanced", "pd-ssd", "hyperdisk-balanced"] | None = None
    """Default: that of the machine family."""
    tier_1: bool = True
    """Whether machines without GPUs use Tier_1 networking, which costs extra."""
    fabric_cidr: Annotated[Cidr, Field(examples=["10.192.0.0/10"])] = IPv4Network("10.192.0.0/10")
    """Range for the networks of the GPUs' interfaces."""
    filestore: Annotated[FilestoreSpec, Field(examples=[{"tier": "ZONAL"}])] = FilestoreSpec()
    protect_storage: bool = True
    """Whether `destroy` keeps the shared files. To delete them, set it to false and run `up`, then `destroy`."""
    iap_port: Annotated[int, Field(ge=1024, le=65535, strict=True)] = 22200
    """Local port of the tunnel to the head."""

    @field_validator("fabric_cidr")
    @classmethod
    def _private(cls, cidr: IPv4Network) -> IPv4Network:
        if not is_private(cidr):
            raise RuleError("must be in a private range", "use 10.192.0.0/10")
        return cidr

    def base_image(self, pinned: str) -> str:
        """Return the base image for `yard bake`.

        `pinned` is the reference of `image` in components/catalog/images.yaml.
        """
        return self.custom_image or pinned

    @property
    def baked_name(self) -> str | None:
        return None if self.baked_image is None else self.baked_image.rpartition("/")[2]

    def uses_tier_1(self, machine: Machine) -> bool:
        """Return whether machines of this type are created with Tier_1 networking."""
        starts_at = family_of(machine.name).tier_1_from_vcpus
        return self.tier_1 and starts_at is not None and machine.vcpus >= starts_at

    @property
    def region(self) -> str:
        return region_of(self.zone)

    @property
    def quota_region(self) -> str:
        return self.region

    def offer(self, kind: str) -> str | None:
        return {"head_nfs": "pd-ssd", "filestore": f"filestore-{self.filestore.tier}"}.get(kind)


def region_of(zone: str) -> str:
    """Return a zone's region, for example us-central1 for us-central1-a."""
    return zone.rpartition("-")[0]
