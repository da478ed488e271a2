"""Every check, by the name of its probe. `reach` has no probe: it is about those that did not answer any."""

from __future__ import annotations

from jobs.doctor.container_checks import check_containers
from jobs.doctor.findings import Check, Examined, Finding
from jobs.doctor.gpu_checks import check_driver, check_faults, check_gpus, check_infiniband, check_topology
from jobs.doctor.node_checks import (
    check_clock,
    check_memlock,
    check_mounts,
    check_queue,
    check_services,
    check_shm,
    check_software,
    check_status,
)
from jobs.doctor.peer_checks import check_munge, check_names, check_nfs, check_reach, check_routes, check_tcp
from jobs.doctor.system_checks import check_disk, check_interfaces, check_settings

CHECKS: dict[str, Check] = {
    "reach": check_reach,
    "munge": check_munge,
    "clock": check_clock,
    "names": check_names,
    "interfaces": check_interfaces,
    "routes": check_routes,
    "tcp": check_tcp,
    "mounts": check_mounts,
    "disk": check_disk,
    "nfs": check_nfs,
    "services": check_services,
    "status": check_status,
    "driver": check_driver,
    "gpus": check_gpus,
    "faults": check_faults,
    "topology": check_topology,
    "infiniband": check_infiniband,
    "containers": check_containers,
    "settings": check_settings,
    "software": check_software,
    "shm": check_shm,
    "memlock": check_memlock,
    "queue": check_queue,
}
"""In the order of cause before effect: a wrong key is said before the daemon that it keeps down."""


SLURMS = frozenset({"munge", "queue"})
"""Checks of what only Slurm needs."""


def judge(examined: Examined) -> dict[str, list[Finding]]:
    """Return the findings of every check by name; an empty list is a pass."""
    fitting = {name: check for name, check in CHECKS.items() if examined.has_slurm or name not in SLURMS}
    return {name: list(check(examined)) for name, check in fitting.items()}
