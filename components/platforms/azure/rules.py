"""The rules of Azure by their ids. A new one: a function in rules_*.py, its line here, its two cases in tests."""

from __future__ import annotations

from components.checks.base import Check, Level, Planned
from components.platforms.access import ssh_has_a_way, ssh_is_not_open
from components.platforms.azure import rules_machines as machines
from components.platforms.azure import rules_network as network
from components.platforms.azure import rules_region as region
from components.platforms.azure import rules_storage as storage

RULES: tuple[Check[Planned], ...] = (
    Check(id="azure-region", level=Level.ERROR, run=region.region_sells),
    Check(id="azure-zone", level=Level.ERROR, run=region.region_has_zones),
    Check(id="azure-size-retired", level=Level.ERROR, run=machines.size_is_sold),
    Check(id="azure-image", level=Level.ERROR, run=machines.image_drives_gpus),
    Check(id="azure-image-version", level=Level.ERROR, run=machines.one_image_is_named),
    Check(id="azure-fabric", level=Level.ERROR, run=machines.fabric_is_there),
    Check(id="azure-fabric-size", level=Level.ERROR, run=machines.fabric_holds_group),
    Check(id="azure-compact", level=Level.ERROR, run=machines.compact_without_fabric),
    Check(id="azure-reservable", level=Level.ERROR, run=machines.size_is_reservable),
    Check(id="azure-reservation-id", level=Level.ERROR, run=machines.reservation_has_id),
    Check(id="azure-reservation-zone", level=Level.ERROR, run=machines.reservation_has_zone),
    Check(id="azure-reservation-placement", level=Level.ERROR, run=machines.reservation_stands_alone),
    Check(id="azure-infiniband-network", level=Level.ERROR, run=network.infiniband_has_its_network),
    Check(id="azure-services-network", level=Level.ERROR, run=network.services_stand_beside),
    Check(id="azure-ssh-way", level=Level.ERROR, run=ssh_has_a_way),
    Check(id="azure-ssh-open", level=Level.ERROR, run=ssh_is_not_open),
    Check(id="azure-storage-kind", level=Level.ERROR, run=storage.kind_known),
    Check(id="azure-fabric-idle", level=Level.WARNING, run=machines.fabric_is_used),
    Check(id="azure-fabric-letter", level=Level.WARNING, run=machines.fabric_letter),
    Check(id="azure-fabric-unsupported", level=Level.WARNING, run=machines.fabric_is_supported),
    Check(id="azure-image-unverified", level=Level.INFO, run=machines.image_is_the_pinned_one),
    Check(id="azure-netapp-pool", level=Level.WARNING, run=storage.pool_is_used),
    Check(id="azure-files-open", level=Level.INFO, run=storage.files_are_unencrypted),
    Check(id="azure-container", level=Level.INFO, run=machines.container_told),
    Check(id="azure-groups-apart", level=Level.INFO, run=machines.groups_apart),
    Check(id="azure-spot", level=Level.INFO, run=machines.spot_told),
    Check(id="azure-tunnel", level=Level.INFO, run=network.tunnel_told),
    Check(id="azure-unconfirmed", level=Level.INFO, run=machines.unconfirmed_told),
)
