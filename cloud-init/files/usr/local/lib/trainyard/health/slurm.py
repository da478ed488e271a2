"""Drains and resumes this node in Slurm."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from health.node import Node
from trainyard.faults import BANDWIDTH, GONE, POWER, ROLL, SLURMD, cause_of, fault, flags

_STATE = re.compile(r" State=(\S+)")
_REASON = re.compile(r" Reason=(.*?)(?: \[[^\[\]@]+@[^\[\]]*\]| [A-Z]\w+=|\s*$)", re.MULTILINE)
_OWN_SCRIPT = re.compile(r"/shared/(?:people/[^/]+/)?jobs/[^/]+/job\.sbatch")
"""The script that `yard submit` writes. A user's own Slurm script is in the subfolder `code` of the same folder."""
_STARTED = re.compile(r" SlurmdStartTime=(\S+)")
_SECONDS = 20
_REGISTER_SECONDS = 15


@dataclass(frozen=True)
class SlurmNode:
    """A node's state in Slurm, for example "IDLE+DRAIN", and its reason."""

    state: str
    reason: str

    @property
    def flags(self) -> frozenset[str]:
        return flags(self.state)

    @property
    def was_lost(self) -> bool:
        """Whether trainyard-repair took the node out of service because it did not respond."""
        return cause_of(self.reason) in {GONE, SLURMD}


def parse(text: str) -> SlurmNode | None:
    """Parse a line from `scontrol -o show node`. Return None if it contains no state."""
    state, reason = _STATE.search(text), _REASON.search(text)
    if state is None:
        return None
    return SlurmNode(state[1], reason[1].strip() if reason else "")


def owner(reason: str, checks: Collection[str]) -> str | None:
    """Return the check that wrote the reason, or None if another program or a person wrote it."""
    cause = cause_of(reason)
    return cause if cause in checks else None


def may_return(node: SlurmNode, *, is_new: bool) -> bool:
    """Return whether a node that has passed the 90-health stage returns to service.

    Slurm keeps a node down after an unexpected reboot, so that the lost job is requeued instead of counted as complete.
    A node whose machine could not be started returns as well. A node drained by `yard roll` or the bandwidth gate
    returns only on a new machine, which has never been ready (`is_new`). A node that an operator or a health check took
    out of service stays out.
    """
    if "DOWN" in node.flags and (fault(node.reason) == GONE or cause_of(node.reason) == POWER):
        return True
    return is_new and (node.reason == ROLL or cause_of(node.reason) == BANDWIDTH)


def decide(node: SlurmNode, wanted: str | None, checks: Collection[str], proved: Collection[str]) -> str | None:
    """Return "drain", "resume", or None for no change. `wanted` is the verdict's drain reason, or None.

    A node is resumed only if `proved` contains the check that wrote its reason. Such a check has passed often enough,
    or does not apply to this node. A reason from anyone else is never replaced. A node that is down with such a reason
    is not drained either: Slurm starts no jobs on it, and 90-health needs the reason to return it to service.
    """
    own, drained, down = owner(node.reason, checks), "DRAIN" in node.flags, "DOWN" in node.flags
    if wanted is None:
        return "resume" if own in proved and (drained or down) else None
    if own is not None:
        return None if drained and node.reason == wanted else "drain"
    return None if drained or down else "drain"


def apply(node: Node, wanted: str | None, checks: Collection[str], proved: Collection[str]) -> bool:
    """Make the node's state in Slurm agree with the verdict. Return False if the caller must try again."""
    shown = _show(node)
    found = parse(shown)
    if found is None:
        return False
    if wanted is None and must_register(found):
        return _register(node, shown) and (not found.was_lost or _update(node, "state=resume"))
    action = decide(found, wanted, checks, proved)
    if action is None:
        return wanted is not None or owner(found.reason, checks) is None
    return _update(node, f"state={action}", *([f"reason={wanted}"] if action == "drain" else []))


def return_to_service(node: Node, *, is_new: bool) -> None:
    """Return this node to service after its boot if `may_return` allows it."""
    found = parse(_show(node))
    if found is not None and may_return(found, is_new=is_new):
        _update(node, "state=resume")


def must_register(node: SlurmNode) -> bool:
    """Return whether slurmd must register with slurmctld before the node can return to service.

    slurmctld never pings a node that is down and does not respond. It pings other unresponsive nodes only every
    SlurmdTimeout/3 (ping_nodes in slurmctld/ping_nodes.c of Slurm 23.11.4 and 24.11.5, read 2026-11-24). Only a
    registration ends the leftovers of jobs that slurmctld has requeued (validate_jobs_on_node in slurmctld/job_mgr.c).
    """
    is_out = not node.flags.isdisjoint({"DOWN", "DRAIN"})
    return "NOT_RESPONDING" in node.flags or (is_out and node.was_lost)


def _register(node: Node, shown: str) -> bool:
    """Restart slurmd, which does not affect jobs, and return whether it has registered within 15 s.

    `shown` describes the node before the restart. A different start time shows that slurmd has registered. The new time
    can be earlier, because the clock may have jumped.
    """
    if node.run(["systemctl", "restart", "slurmd.service"], _SECONDS).code != 0:
        return False
    for _ in range(_REGISTER_SECONDS):
        if _STARTED.findall(found := _show(node)) != _STARTED.findall(shown) and found:
            return True
        node.sleep(1)
    return False


def _show(node: Node) -> str:
    """Return Slurm's description of the node as one line, or "" if slurmctld does not respond."""
    shown = node.run(["scontrol", "-o", "show", "node", node.variable("TRAINYARD_NODE")], _SECONDS)
    return shown.output if shown.code == 0 else ""


def _update(node: Node, *changes: str) -> bool:
    return node.run(["scontrol", "update", f"nodename={node.variable('TRAINYARD_NODE')}", *changes], _SECONDS).code == 0


def jobs_on(node: Node) -> list[str] | None:
    """Return the numbers of the jobs that hold this node, or None if slurmctld does not respond."""
    options = ("--noheader", "--states=running,configuring,suspended", f"--nodelist={node.variable('TRAINYARD_NODE')}")
    listed = node.run(["squeue", *options, "--format=%A"], _SECONDS)
    return listed.output.split() if listed.code == 0 else None


JOB_FIELDS = "%A %F %K"
"""squeue's fields for job_name: the number, the number of the array, and the task of the array."""


def job_name(number: str, array: str, task: str) -> str:
    """Return the name by which Slurm's commands address one job: its number or, for a task of an array, ARRAY_TASK.

    The number of one task is also the array's number, by which `scontrol requeue`, `scontrol update` and `scancel` act
    on all tasks (job_requeue2 in slurmctld/job_mgr.c of Slurm 24.11.5, and scancel(1) and scontrol(1), read
    2026-11-27).
    """
    return f"{array}_{task}" if task.isdecimal() else number


def _running_jobs(node: Node) -> list[str] | None:
    """Return the names of the jobs that are running on this node, or None if slurmctld does not respond."""
    options = ("--noheader", "--states=running", f"--nodelist={node.variable('TRAINYARD_NODE')}")
    listed = node.run(["squeue", *options, f"--format={JOB_FIELDS}"], _SECONDS)
    return [job_name(*line.split()) for line in listed.output.splitlines()] if listed.code == 0 else None


def requeue_jobs(node: Node) -> bool:
    """Requeue the jobs that are running on this node. Return False if the caller must try again.

    After a fatal fault, a job's other ranks would wait for this node until NCCL's timeout, which can take half an hour.
    Slurm does not requeue a job that was submitted with --no-requeue, so such a job continues.
    """
    jobs = _running_jobs(node)
    for job in jobs or ():
        node.run(["scontrol", "requeue", job], _SECONDS)
    return jobs is not None


def warn_jobs(node: Node) -> bool:
    """Send this node's jobs the signal that precedes a time limit. Return False if the caller must try again.

    A job with checkpoints that was submitted with `yard submit` then writes a checkpoint and is requeued. Other jobs
    receive no signal, because SIGUSR2 would end a script that does not handle it.
    """
    jobs = _running_jobs(node)
    is_complete = jobs is not None
    for job in jobs or ():
        # A script's path can contain line breaks, so it is read for each job alone.
        shown = node.run(["squeue", "--noheader", f"--jobs={job}", "--format=%o"], _SECONDS)
        is_complete = is_complete and shown.code == 0
        if shown.code == 0 and _OWN_SCRIPT.fullmatch(shown.output.rstrip(" \n")):
            node.run(["scancel", "--batch", "--signal=USR2", job], _SECONDS)
    return is_complete
