"""Every check, by the name of its probe. `reach` has no probe: it is about those that did not answer any."""

from __future__ import annotations

from jobs.doctor.findings import Check, Examined, Finding
from jobs.doctor.node_checks import (
    check_clock,
    check_gpus,
    check_memlock,
    check_mounts,
    check_queue,
    check_services,
    check_shm,
    check_software,
    check_status,
)
from jobs.doctor.peer_checks import check_munge, check_names, check_nfs, check_reach, check_routes, check_tcp

CHECKS: dict[str, Check] = {
    "reach": check_reach,
    "munge": check_munge,
    "clock": check_clock,
    "names": check_names,
    "routes": check_routes,
    "tcp": check_tcp,
    "mounts": check_mounts,
    "nfs": check_nfs,
    "services": check_services,
    "status": check_status,
    "gpus": check_gpus,
    "software": check_software,
    "shm": check_shm,
    "memlock": check_memlock,
    "queue": check_queue,
}
"""In the order of cause before effect: a wrong key is said before the daemon that it keeps down."""


def judge(examined: Examined) -> dict[str, list[Finding]]:
    """Return the findings of every check by name; an empty list is a pass."""
    return {name: list(check(examined)) for name, check in CHECKS.items()}
