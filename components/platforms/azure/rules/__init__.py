"""The checks for Azure stacks."""

from __future__ import annotations

from dataclasses import replace

from components.plan.check import checks_in
from components.platforms.access import ssh_has_a_way, ssh_is_not_open
from components.platforms.azure.rules import machines, network, storage
from components.platforms.baked import baked_image_has_system, baked_image_is_current

RULES = (
    *checks_in(network, machines, storage),
    replace(ssh_has_a_way, id="azure-ssh-way"),
    replace(ssh_is_not_open, id="azure-ssh-open"),
    replace(baked_image_has_system, id="azure-image-system"),
    replace(baked_image_is_current, id="azure-image-stale"),
)
