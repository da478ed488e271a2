"""The rules of GCP by their ids. A new one: a function in rules_*.py, its line here, its two cases in tests."""

from __future__ import annotations

from components.checks.base import Check, Level, Planned
from components.platforms.access import ssh_has_a_way, ssh_is_not_open
from components.platforms.gcp import rules_machines as machines
from components.platforms.gcp import rules_network as network
from components.platforms.gcp import rules_storage as storage

RULES: tuple[Check[Planned], ...] = (
    Check(id="gcp-zone", level=Level.ERROR, run=machines.zone_offers),
    Check(id="gcp-boot-disk", level=Level.ERROR, run=machines.boot_disk_fits),
    Check(id="gcp-image-fabric", level=Level.ERROR, run=machines.image_has_fabric),
    Check(id="gcp-placement", level=Level.ERROR, run=machines.placement_known),
    Check(id="gcp-reservation-name", level=Level.ERROR, run=machines.reservation_has_name),
    Check(id="gcp-dense-reservation", level=Level.ERROR, run=machines.dense_reservation_places),
    Check(id="gcp-fabric-network", level=Level.ERROR, run=network.fabric_network_fits),
    Check(id="gcp-address-kept", level=Level.ERROR, run=network.address_free),
    Check(id="gcp-ssh-way", level=Level.ERROR, run=ssh_has_a_way),
    Check(id="gcp-ssh-open", level=Level.ERROR, run=ssh_is_not_open),
    Check(id="gcp-storage-kind", level=Level.ERROR, run=storage.kind_known),
    Check(id="gcp-filestore-size", level=Level.ERROR, run=storage.size_fits),
    Check(id="gcp-filestore-region", level=Level.ERROR, run=storage.stands_near),
    Check(id="gcp-filestore-zone", level=Level.WARNING, run=storage.stands_in_zone),
    Check(id="gcp-zone-unlisted", level=Level.WARNING, run=machines.zone_unlisted),
    Check(id="gcp-reservation-policy", level=Level.WARNING, run=machines.reservation_places),
    Check(id="gcp-on-demand", level=Level.WARNING, run=machines.on_demand_seen),
    Check(id="gcp-tunnel", level=Level.INFO, run=network.tunnel_told),
    Check(id="gcp-compact-scarce", level=Level.INFO, run=machines.compact_is_scarce),
    Check(id="gcp-unconfirmed", level=Level.INFO, run=machines.unconfirmed_told),
)
