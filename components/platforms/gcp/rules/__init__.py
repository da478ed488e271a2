"""The checks for Google Cloud stacks."""

from __future__ import annotations

from dataclasses import replace

from components.plan.check import checks_in
from components.platforms.access import ssh_has_a_way, ssh_is_not_open
from components.platforms.baked import baked_image_has_system, baked_image_is_current
from components.platforms.gcp.rules import machines, network, storage

RULES = (
    *checks_in(network, machines, storage),
    replace(ssh_has_a_way, id="gcp-ssh-way"),
    replace(ssh_is_not_open, id="gcp-ssh-open"),
    replace(baked_image_has_system, id="gcp-image-system"),
    replace(baked_image_is_current, id="gcp-image-stale"),
)
