"""The checks for Azure stacks. A new check needs a function in this package, an entry in RULES, and test cases."""

from __future__ import annotations

from dataclasses import replace

from components.plan.checks.base import Check, Planned
from components.platforms.access import ssh_has_a_way, ssh_is_not_open
from components.platforms.azure.rules import machines as machines
from components.platforms.azure.rules import network as network
from components.platforms.azure.rules import storage as storage
from components.platforms.baked import baked_image_has_system, baked_image_is_current

RULES: tuple[Check[Planned], ...] = (
    network.region_offers,
    network.region_has_zones,
    machines.size_not_retired,
    machines.image_has_drivers,
    machines.one_image_is_set,
    machines.size_has_fabric,
    machines.fabric_holds_group,
    machines.compact_without_fabric,
    machines.size_is_reservable,
    machines.reservation_has_id,
    machines.reservation_has_zone,
    machines.reservation_without_placement,
    network.infiniband_network_free,
    network.services_do_not_overlap,
    replace(ssh_has_a_way, id="azure-ssh-way"),
    replace(ssh_is_not_open, id="azure-ssh-open"),
    storage.kind_known,
    machines.fabric_is_used,
    machines.fabric_variant,
    machines.fabric_is_supported,
    machines.image_is_the_pinned_one,
    storage.pool_size_is_whole,
    storage.files_limits_reported,
    machines.placement_reported,
    machines.separate_fabrics_reported,
    machines.spot_reported,
    network.tunnel_reported,
    machines.unverified_reported,
    replace(baked_image_has_system, id="azure-image-system"),
    replace(baked_image_is_current, id="azure-image-stale"),
)
