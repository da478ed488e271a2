"""Rules and limits for Google Cloud stacks."""

from __future__ import annotations

from components.plan.plan import ClusterPlan
from components.platforms.facts import Baking, PlatformFacts, Tunnel
from components.platforms.gcp.quotas import stack_quotas
from components.platforms.gcp.rules import RULES
from components.platforms.gcp.spec import GcpSpec

PROGRAM = "gcloud"
"""The cloud's command-line tool."""


def _base_image(plan: ClusterPlan) -> str:
    """Return the base image and the stack's project.

    The region is not included, because a baked image is available in all regions of its project.
    """
    spec = plan.platform_spec(GcpSpec)
    return f"{spec.base_image(str(plan.image.reference))} {spec.project}"


def _tunnel(plan: ClusterPlan) -> Tunnel:
    port = plan.platform_spec(GcpSpec).iap_port
    return Tunnel(program=PROGRAM, port=port, option="cluster.platform.iap_port")


FACTS = PlatformFacts(
    baking=Baking(base=_base_image),
    # Maximum size of a metadata value in bytes.
    user_data_limit=256 * 1024,
    checks=RULES,
    quotas=stack_quotas,
    tunnel=_tunnel,
    # Limit of Persistent Disk (Google, "About Persistent Disk").
    largest_disk_gib=65536,
    billed={
        "gcp:compute/instance:Instance": "machine",
        "gcp:compute/disk:Disk": "disk",
        "gcp:filestore/instance:Instance": "Filestore",
        "gcp:compute/routerNat:RouterNat": "Cloud NAT",
        "gcp:compute/address:Address": "reserved address",
    },
    storage_types=frozenset({"gcp:compute/disk:Disk", "gcp:filestore/instance:Instance"}),
)
