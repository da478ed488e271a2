"""The checks for GCP stacks. A new check needs a function in this package, an entry in RULES, and test cases."""

from __future__ import annotations

from dataclasses import replace

from components.plan.checks.base import Check, Planned
from components.platforms.access import ssh_has_a_way, ssh_is_not_open
from components.platforms.baked import baked_image_has_system, baked_image_is_current
from components.platforms.gcp.rules import machines as machines
from components.platforms.gcp.rules import network as network
from components.platforms.gcp.rules import storage as storage

RULES: tuple[Check[Planned], ...] = (
    machines.zone_offers,
    machines.boot_disk_fits,
    machines.image_has_fabric,
    machines.placement_supported,
    machines.reservation_has_name,
    machines.dense_reservation_without_placement,
    network.fabric_network_fits,
    network.address_free,
    replace(ssh_has_a_way, id="gcp-ssh-way"),
    replace(ssh_is_not_open, id="gcp-ssh-open"),
    storage.kind_known,
    storage.size_fits,
    storage.filestore_in_region,
    storage.filestore_in_zone,
    machines.zones_recorded,
    machines.reservation_without_placement,
    machines.on_demand_documented,
    network.tunnel_reported,
    machines.compact_scarcity_reported,
    machines.unverified_reported,
    replace(baked_image_has_system, id="gcp-image-system"),
    replace(baked_image_is_current, id="gcp-image-stale"),
)
