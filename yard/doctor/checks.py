"""`yard doctor`: runs the checks on all hosts and prints the problems."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace

from trainyard.errors import RemoteError
from trainyard.outputs import Cluster
from yard.doctor import gpu_checks, host_checks, peer_checks
from yard.doctor.collect import examine
from yard.doctor.findings import Examined, HostCheck, HostProblem
from yard.doctor.gpu_checks import nccl_facts
from yard.doctor.host_checks import is_slurms_own
from yard.run.queue import power_state
from yard.run.schedulers import Slurm
from yard.show import say, say_json, warn
from yard.stack.remote import Remote

CHECKS: dict[str, HostCheck] = {
    "reach": peer_checks.check_reach,
    "munge": peer_checks.check_munge,
    "clock": host_checks.check_clock,
    "names": peer_checks.check_names,
    "interfaces": host_checks.check_interfaces,
    "routes": peer_checks.check_routes,
    "tcp": peer_checks.check_tcp,
    "mounts": host_checks.check_mounts,
    "nfs": peer_checks.check_nfs,
    "health": host_checks.check_health,
    "services": host_checks.check_services,
    "status": host_checks.check_status,
    "driver": gpu_checks.check_driver,
    "topology": gpu_checks.check_topology,
    "infiniband": gpu_checks.check_infiniband,
    "containers": host_checks.check_containers,
    "nccl": gpu_checks.check_nccl,
    "settings": host_checks.check_settings,
    "software": host_checks.check_software,
    "shm": host_checks.check_shm,
    "memlock": host_checks.check_memlock,
    "queue": host_checks.check_queue,
}
"""Mapping from probe name to check. `reach` has no probe, and reports the hosts that cannot be examined.

Checks that find the causes of other problems come first. For example, `munge` precedes `queue`, because a wrong key
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
    # Without slurmd, a worker has no configuration, and Slurm's commands print no version.
    ("software", "slurm"): ("services",),
}
"""Mapping from a problem's check and first word to the checks that explain the problem on the same host."""
_MAKE_A_NODE_UNAVAILABLE = ("reach", "munge", "clock", "mounts", "nfs", "health", "services", "status")


def judge(examined: Examined) -> dict[str, list[HostProblem]]:
    """Return a mapping from check name to problems. Problems that another problem explains are omitted."""
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


def explained(examined: Examined, findings: Mapping[str, Sequence[HostProblem]]) -> set[str]:
    """Return the checks whose problems are all omitted from `findings`, because other problems explain them."""
    return {name for name, found in findings.items() if not found and next(iter(CHECKS[name](examined)), None)}


def run_doctor(remote: Remote, as_json: bool) -> int:
    """Check the cluster and print the problems. Returns 1 if there are problems, otherwise 0."""
    start = time.monotonic()
    if text := remote.stack.cluster.warning:
        warn(f"yard: {text}")
    if not as_json:
        warn("yard: checking every host")
    cluster = _running(remote)
    reports = examine(remote, cluster)
    examined = Examined(cluster=cluster, reports=reports, stack=remote.stack.name)
    findings, facts = judge(examined), {"nccl": nccl_facts(examined)}
    seconds = time.monotonic() - start
    healthy = not any(findings.values())
    if as_json:
        rows = {name: [{"probe": name, **asdict(finding)} for finding in found] for name, found in findings.items()}
        say_json({"healthy": healthy, "seconds": round(seconds, 1), "checks": rows, "facts": facts})
    else:
        say(report(findings, len(reports), seconds, facts, explained(examined, findings)))
    return 0 if healthy else 1


def _running(remote: Remote) -> Cluster:
    """Return the cluster without the elastic nodes whose machines are off."""
    cluster = remote.stack.cluster
    if cluster.scheduler != "slurm":
        return cluster
    try:
        states = Slurm().nodes(remote)
    except RemoteError:
        # The reports show why the head does not answer.
        return cluster
    off = [node.name for node in cluster.nodes if power_state(states.get(node.name, ("", ""))[0])]
    if off:
        warn(f"yard: not checked, because their machines are off: {', '.join(off)}")
    return replace(cluster, nodes=tuple(node for node in cluster.nodes if node.name not in off))


def report(
    findings: Mapping[str, Sequence[HostProblem]],
    hosts: int,
    seconds: float,
    facts: Mapping[str, Sequence[str]],
    explained: Collection[str] = (),
) -> str:
    """Return the problems and facts as text, grouped by check.

    `explained` contains the failed checks without a problem of their own.
    """
    lines = []
    for name, found in findings.items():
        if name in explained:
            lines.append(f"FAIL  {name}: a consequence of the problems of the other checks")
        else:
            lines.append(f"{'FAIL' if found else 'ok  '}  {name}")
        lines += [f"      {fact}" for fact in facts.get(name, ())]
        for finding in found:
            lines.append(f"      {finding.node}: {finding.what}")
            lines += [f"        cause: {finding.cause}"] if finding.cause else []
            lines.append(f"        fix:   {finding.fix}")
    count = sum(len(found) for found in findings.values())
    verdict = "no problems found" if count == 0 else f"{count} problem" + ("s" if count > 1 else "")
    lines.append(f"{hosts} hosts, {len(findings)} checks, {seconds:.0f} s: {verdict}")
    if count and "queue" in findings:
        lines.append("begin with these fixes: `yard nodes` and `yard heal` can show the same problem a minute later")
    return "\n".join(lines) + "\n"
