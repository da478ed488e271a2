"""What a stack file may say about the Azure platform, and the way to its rules and its Platform. Imports no SDK."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from components.addresses import Cidr, is_private
from components.errors import RuleError
from components.platforms.azure.quotas import stack_quotas
from components.platforms.azure.regions import known_region
from components.spec import Model, PlatformSpec

if TYPE_CHECKING:
    from components.checks.base import Check, Planned
    from components.errors import Problem
    from components.plan import ClusterPlan
    from components.platforms.base import Platform
    from components.spec import ClusterSpec

__all__ = ["NetappSpec", "Spec", "checks", "platform_class", "problems"]

ServiceLevel = Literal["Standard", "Premium", "Ultra"]


_SERVICES_PREFIX = 25
"""Room for two subnets of the size that Bastion wants."""


class NetappSpec(Model):
    """How the shared storage `azure_netapp` is made; its size is in `storage.shared`."""

    service_level: ServiceLevel = "Premium"
    """How many MiB/s each TiB brings: 16, 64 or 128."""


class Spec(PlatformSpec):
    """`platform:` of an Azure stack."""

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
    zone: Annotated[Literal["1", "2", "3"] | None, Field(examples=["1"])] = None
    """All machines and disks stand in it; None: Azure chooses, and availability sets may be used."""
    subscription: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$",
            description="must be a subscription's id, in lowercase",
            examples=["00000000-0000-0000-0000-000000000000"],
        ),
    ] = None
    """Where everything is made; None: wherever the environment (ARM_SUBSCRIPTION_ID or `az login`) points."""
    image: Literal["azure-ubuntu-24.04-hpc"] = "azure-ubuntu-24.04-hpc"
    image_version: Annotated[
        str | None,
        Field(
            pattern=r"^[0-9]{1,10}(\.[0-9]{1,10}){2}$",
            description="must be a version of the image: three numbers with dots between them",
            examples=["24.04.2026072901"],
        ),
    ] = None
    """Another version of `image` than the pinned one, for example when Azure has withdrawn that one. A change replaces
    every machine."""
    custom_image: Annotated[
        str | None,
        Field(
            pattern=r"^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/Microsoft\.Compute/"
            r"(images/[^/]+|galleries/[^/]+/images/[^/]+/versions/[^/]+)$",
            description="must be the id of an image, or of one version of a gallery's image",
            examples=[
                "/subscriptions/ID/resourceGroups/images/providers/Microsoft.Compute/galleries/own/images/hpc/versions/1.0.0"
            ],
        ),
    ] = None
    """An image of your own, made from `image`: what runs on it is configured as on that one."""
    boot_disk_gib: Annotated[int, Field(ge=64, le=4095, strict=True, examples=[256])] = 256
    """Of every machine."""
    services_cidr: Annotated[Cidr, Field(examples=["10.78.0.0/24"])] = IPv4Network("10.78.0.0/24")
    """Addresses beside the cluster's own for what needs a subnet to itself: Bastion, NetApp Files."""
    netapp: Annotated[NetappSpec, Field(examples=[{"service_level": "Premium"}])] = NetappSpec()
    protect_storage: bool = True
    """Whether shared files survive `destroy`. To lose them on purpose: false, `up`, `destroy`."""
    bastion_port: Annotated[int, Field(ge=1024, le=65535, strict=True)] = 22200
    """The loopback port of the tunnel to the head while `pulumi up` runs, with `access.via: bastion`."""

    @field_validator("services_cidr")
    @classmethod
    def _private(cls, cidr: IPv4Network) -> IPv4Network:
        if not is_private(cidr) or cidr.prefixlen > _SERVICES_PREFIX:
            raise RuleError("must lie in a private range and be a /25 or wider", "use 10.78.0.0/24")
        return cidr

    def storage_offer(self, kind: str) -> str | None:
        """See PlatformSpec."""
        offers = {
            "head_nfs": "premium-ssd",
            "azure_files": "azure-files-premium",
            "azure_netapp": f"netapp-{self.netapp.service_level}",
        }
        return offers.get(kind)

    def gateway_offer(self) -> str | None:
        """See PlatformSpec."""
        return "bastion-standard"

    def quotas(self, cluster: ClusterSpec, plan: ClusterPlan) -> Mapping[str, int]:
        """Return the needs for public addresses and NetApp capacity."""
        return stack_quotas(cluster)

    def image_reference(self, pinned: str) -> str:
        """Return the image of every machine: publisher:offer:sku:version, or the id of a custom image.

        `pinned` is the reference of `image` in components/catalog/images.yaml.
        """
        if self.custom_image is not None:
            return self.custom_image
        return pinned if self.image_version is None else f"{pinned.rpartition(':')[0]}:{self.image_version}"

    def quota_place(self) -> str:
        """Return the region."""
        return self.region


def problems(spec: ClusterSpec, plan: ClusterPlan) -> list[Problem]:
    """Return nothing: every rule of Azure is a check of its own."""
    return []


def checks() -> tuple[Check[Planned], ...]:
    """Return the rules of Azure. They know the Spec here, so they are imported when asked for."""
    from components.platforms.azure.rules import RULES  # noqa: PLC0415

    return RULES


def platform_class() -> type[Platform]:
    """Return the Platform; only this imports pulumi and its Azure SDK."""
    from components.platforms.azure.platform import AzurePlatform  # noqa: PLC0415

    return AzurePlatform
