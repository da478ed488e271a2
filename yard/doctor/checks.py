"""The checks that `yard doctor` runs."""

from __future__ import annotations

from yard.doctor import (
    container_checks,
    gpu_checks,
    health_checks,
    nccl_checks,
    node_checks,
    peer_checks,
    system_checks,
)
from yard.doctor.findings import Examined, HostCheck, HostProblem

CHECKS: dict[str, HostCheck] = {
    "reach": peer_checks.check_reach,
    "munge": peer_checks.check_munge,
    "clock": node_checks.check_clock,
    "names": peer_checks.check_names,
    "interfaces": system_checks.check_interfaces,
    "routes": peer_checks.check_routes,
    "tcp": peer_checks.check_tcp,
    "mounts": node_checks.check_mounts,
    "nfs": peer_checks.check_nfs,
    "health": health_checks.check_health,
    "services": node_checks.check_services,
    "status": node_checks.check_status,
    "driver": gpu_checks.check_driver,
    "topology": gpu_checks.check_topology,
    "infiniband": gpu_checks.check_infiniband,
    "containers": container_checks.check_containers,
    "nccl": nccl_checks.check_nccl,
    "settings": system_checks.check_settings,
    "software": node_checks.check_software,
    "shm": node_checks.check_shm,
    "memlock": node_checks.check_memlock,
    "queue": node_checks.check_queue,
}
"""The checks by probe name. `reach` has no probe. It reports hosts that cannot be examined.

Checks that find the cause of other problems come first. For example, `munge` runs before `queue`, because a wrong key
stops slurmd.
"""

NEED_SLURM = frozenset({"munge", "queue"})
"""Checks that run only on clusters with Slurm."""


def judge(examined: Examined) -> dict[str, list[HostProblem]]:
    """Return the problems by check name."""
    return {
        name: list(check(examined)) for name, check in CHECKS.items() if examined.has_slurm or name not in NEED_SLURM
    }
