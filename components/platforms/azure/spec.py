"""AzureSpec: the `platform:` section of an Azure stack, and the sizes and regions that it can name. Imports no SDK."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from ipaddress import IPv4Network
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from components.catalog import Fact, read_rows
from components.platforms.published import Places, Published, read_published
from components.spec.model import BAKED_NAME, Cidr, CloudSpec, Model, is_private, used_machines
from trainyard.errors import CatalogError, RuleError


class Size(Fact):
    """A machine size."""

    accelerated: bool
    """Whether the size supports accelerated networking."""
    reservable: bool
    """Whether Azure supports capacity reservations for the size."""
    largest_fabric: int | None = None
    """Maximum number of machines in an InfiniBand fabric, or None if the size has no InfiniBand."""
    with_fabric: str | None = None
    """Name of the size's variant with InfiniBand, or None if no such variant exists."""
    stock_image: bool = True
    """Whether the pinned image contains drivers for the size's GPUs."""
    retired: str | None = None
    """The date on which Azure retired the size."""
    unverified: tuple[str, ...] = ()
    """Names of the fields whose values have no public source."""


@cache
def sizes() -> dict[str, Size]:
    """Return the catalog's sizes, keyed by name. Raises CatalogError if the file does not match its model."""
    return read_rows("azure_sizes.yaml", Size)


def size_of(machine: str) -> Size:
    """Return the size with the name `machine`. Raises CatalogError if the catalog does not contain it."""
    size = sizes().get(machine)
    if size is None:
        raise CatalogError(f"components/catalog/azure_sizes.yaml has no size {machine}; add it")
    return size


class Regions(Places):
    """The public regions."""

    with_zones: frozenset[str]
    without_zones: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.with_zones | self.without_zones))


class RegionFacts(Published):
    """All regions, and the regions in which each machine type has a known price."""

    regions: Regions
    everywhere: frozenset[str]
    """Machine types with a price in all regions."""
    machines: dict[str, tuple[str, ...]]
    """Mapping from the remaining machine types to the regions in which they have a price."""


@cache
def region_facts() -> RegionFacts:
    """Return the catalog's regions. Raises CatalogError if the file does not match its model."""
    return read_published("azure_regions.yaml", RegionFacts)


def regions_with(names: Iterable[str]) -> tuple[str, ...]:
    """Return the regions that have prices for all of these machine types, or all regions if no region has them.

    Unknown types are ignored.
    """
    facts = region_facts()
    return facts.regions.in_all(facts.machines[name] for name in names if name in facts.machines)


def known_region(name: str, info: ValidationInfo) -> str:
    """Return `name` if it is a region. Otherwise, raise RuleError and suggest a region that suits the stack."""
    usable, command = regions_with(used_machines(info)), "az account list-locations --query [].name"
    return region_facts().regions.check(name, usable, "an Azure region", command)


ServiceLevel = Literal["Standard", "Premium", "Ultra"]


_SERVICE_PREFIX = 26
"""Prefix length of the subnets for Bastion and NetApp Files. Bastion requires a /26 or wider."""


class NetappSpec(Model):
    """Settings for the shared storage `azure_netapp`. Its size is in `storage.shared`."""

    service_level: ServiceLevel = "Premium"
    """16, 64 or 128 MiB/s per TiB."""


class AzureSpec(CloudSpec):
    """The `platform:` section of an Azure stack."""

    beside_machines: ClassVar[frozenset[str]] = frozenset(
        {"baked_image", "bastion_port", "custom_image", "image_version", "netapp", "protect_storage", "services_cidr"}
    )

    provider: Literal["azure"]
    region: Annotated[
        str,
        Field(
            pattern=r"^[a-z]{3,30}[0-9]?$",
            description="must be a region's short name: lowercase letters, without spaces",
            examples=["southcentralus"],
        ),
        AfterValidator(known_region),
    ]
    """Short name, without spaces."""
    zone: Annotated[Literal["1", "2", "3"] | None, Field(examples=["1"])] = None
    """Zone of all machines. Default: Azure chooses."""
    subscription: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
            description="must be a subscription's id, in lowercase",
            examples=["00000000-0000-0000-0000-000000000000"],
        ),
    ] = None
    """Default: ARM_SUBSCRIPTION_ID, or that of `az login`."""
    image: Literal["azure-ubuntu-24.04-hpc"] = "azure-ubuntu-24.04-hpc"
    image_version: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9]{1,10}(\.[0-9]{1,10}){2}$",
            description="must be a version of the image: three numbers with dots between them",
            examples=["24.04.2026072901"],
        ),
    ] = None
    """Replaces the pinned version, for example a withdrawn one."""
    custom_image: Annotated[
        str | None,
        Field(
            pattern=r"^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/"
            r"(images/[^/]+|galleries/[^/]+/images/[^/]+/versions/[^/]+)$",
            description="must be the id of an image, or of one version of an image in a gallery",
            examples=[
                "/subscriptions/ID/resourceGroups/images/providers/Microsoft.Compute/galleries/own/images/hpc/versions/1.0.0"
            ],
        ),
    ] = None
    """Image that was built from `image`."""
    baked_image: Annotated[
        str | None,
        Field(
            pattern=r"^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/"
            rf"galleries/[^/]+/images/{BAKED_NAME}/versions/[^/]+$",
            description="must be the id of an image, which `yard bake` prints",
            examples=[
                "/subscriptions/ID/resourceGroups/trainyard-images/providers/Microsoft.Compute/galleries/trainyard/images/trainyard-ubuntu-24-04-0123456789abcdef/versions/1.0.0"
            ],
        ),
    ] = None
    """Image that `yard bake` built."""
    boot_disk_gib: Annotated[int, Field(ge=64, le=4095, strict=True, examples=[256])] = 256
    """Size of each boot disk."""
    services_cidr: Annotated[Cidr, Field(examples=["10.78.0.0/24"])] = IPv4Network("10.78.0.0/24")
    """Range outside the cluster's network for Bastion and NetApp Files."""
    netapp: Annotated[NetappSpec, Field(examples=[{"service_level": "Premium"}])] = NetappSpec()
    protect_storage: bool = True
    """Whether `destroy` keeps the shared files. To delete them, set it to false and run `up`, then `destroy`."""
    bastion_port: Annotated[int, Field(ge=1024, le=65535, strict=True)] = 22200
    """Local port of the tunnel to the head."""

    @field_validator("services_cidr")
    @classmethod
    def _private(cls, cidr: IPv4Network) -> IPv4Network:
        if not is_private(cidr) or cidr.prefixlen >= _SERVICE_PREFIX:
            raise RuleError("must be in a private range and be a /25 or wider", "use 10.78.0.0/24")
        return cidr

    def service_subnets(self) -> tuple[IPv4Network, IPv4Network]:
        """Return the subnets in `services_cidr` for Bastion and for NetApp Files."""
        subnets = self.services_cidr.subnets(new_prefix=_SERVICE_PREFIX)
        return next(subnets), next(subnets)

    def offer(self, kind: str) -> str | None:
        offers = {
            "head_nfs": "premium-ssd",
            "azure_files": "azure-files-premium",
            "azure_netapp": f"netapp-{self.netapp.service_level}",
            "bastion": "bastion-standard",
        }
        return offers.get(kind)

    def image_reference(self, pinned: str) -> str:
        """Return the image of all machines: publisher:offer:sku:version, or an image's id.

        `pinned` is the reference of `image` in components/catalog/images.yaml.
        """
        return self.baked_image or self.base_image(pinned)

    @property
    def baked_name(self) -> str | None:
        return None if self.baked_image is None else self.baked_image.split("/")[-3]

    def base_image(self, pinned: str) -> str:
        """Return the base image for `yard bake`. `pinned` is the same as in `image_reference`."""
        if self.custom_image is not None:
            return self.custom_image
        return pinned if self.image_version is None else f"{pinned.rpartition(':')[0]}:{self.image_version}"

    @property
    def quota_region(self) -> str:
        return self.region
