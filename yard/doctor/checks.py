"""The checks that `yard doctor` runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

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
from yard.doctor.node_checks import is_slurms_own

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


EXPLAINED_BY: Mapping[tuple[str, str], Collection[str]] = {
    ("services", "munge"): ("munge",),
    ("services", "slurmd"): ("munge",),
    ("services", "slurmctld"): ("munge",),
    ("services", "slurmdbd"): ("munge",),
    ("health", "munge"): ("munge",),
    ("health", "clock-offset"): ("clock",),
    ("health", "nfs-hang"): ("mounts", "nfs"),
}
"""Checks that find the cause of a problem on the same host, by the problem's check and its first word."""
_MAKE_A_NODE_UNAVAILABLE = ("reach", "munge", "clock", "mounts", "nfs", "health", "services", "status")


def judge(examined: Examined) -> dict[str, list[HostProblem]]:
    """Return the problems by check name. Problems that another problem on the list explains are left out."""
    found = {
        name: list(check(examined)) for name, check in CHECKS.items() if examined.has_slurm or name not in NEED_SLURM
    }
    broken = {name: {problem.node for problem in problems} for name, problems in found.items()}
    head = examined.cluster.head.name

    def is_explained(name: str, problem: HostProblem) -> bool:
        word = problem.what.partition(" ")[0].rstrip(":").removesuffix(".service")
        causes = EXPLAINED_BY.get((name, word), ())
        if name == "queue" and is_slurms_own(problem.cause):
            causes = _MAKE_A_NODE_UNAVAILABLE
            if any(head in broken.get(cause, ()) for cause in ("munge", "services")):
                return True
        return any(problem.node in broken.get(cause, ()) for cause in causes)

    return {name: [each for each in problems if not is_explained(name, each)] for name, problems in found.items()}
