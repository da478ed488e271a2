"""Drains and resumes this node in Slurm."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from health.core import Node

_STATE = re.compile(r" State=(\S+)")
_REASON = re.compile(r" Reason=(.*?)(?: \[[^\[\]@]+@[^\[\]]*\]| [A-Z]\w+=|\s*$)", re.MULTILINE)
_OWN = re.compile(r"TY:([a-z0-9-]+): ")
_SUFFIXES = "*~#!%$@^-"
"""Suffixes of a state, for example "*" if the node does not respond (slurm.conf(5) and scontrol(1) of Slurm 24.11)."""
_OWN_SCRIPT = re.compile(r"/shared/jobs/[^/]+/job\.sbatch")
"""Script that `yard submit` writes. A user's Slurm script is in the folder `code` below."""
_SECONDS = 20
_LOST = ("Not responding", "TY:gone: ")
"""Prefixes of the reasons that slurmctld and trainyard-repair set on nodes that did not respond. slurmctld does not
ping nodes that are down and do not respond, and requests their registration only about every 400 s with
SlurmdTimeout=60 (ping_nodes in slurmctld/ping_nodes.c, read 2026-11-23; seen with Slurm 24.11.5)."""


@dataclass(frozen=True)
class SlurmNode:
    """A node's state in Slurm, for example {"IDLE", "DRAIN"}, and its reason."""

    flags: frozenset[str]
    reason: str


def parse(text: str) -> SlurmNode | None:
    """Parse a line of `scontrol -o show node`. Return None if it contains no state."""
    state, reason = _STATE.search(text), _REASON.search(text)
    if state is None:
        return None
    return SlurmNode(
        frozenset(flag.rstrip(_SUFFIXES) for flag in state[1].split("+")), reason[1].strip() if reason else ""
    )


def owner(reason: str, checks: Collection[str]) -> str | None:
    """Return the check that wrote the reason, or None. TY:roll and TY:update belong to other programs."""
    found = _OWN.match(reason)
    return found[1] if found is not None and found[1] in checks else None


def decide(node: SlurmNode, wanted: str | None, checks: Collection[str], proved: Collection[str]) -> str | None:
    """Return "drain", "resume", or None if nothing must change. `wanted`: the drain reason, or None without a verdict.

    `checks`: all checks. `proved`: the checks that have passed often enough, and the checks that do not apply to this
    node. A node is resumed only if a health check wrote its reason, and if `proved` contains this check. Reasons of
    operators, of Slurm and of other programs are never replaced. A node that is down is not drained: Slurm starts no
    jobs on it, and 90-health needs the existing reason to return the node to service.
    """
    own, drained, down = owner(node.reason, checks), "DRAIN" in node.flags, "DOWN" in node.flags
    if wanted is None:
        return "resume" if own in proved and (drained or down) else None
    if own is not None:
        return None if drained and node.reason == wanted else "drain"
    return None if drained or down else "drain"


def apply(node: Node, wanted: str | None, checks: Collection[str], proved: Collection[str]) -> bool:
    """Make the node's state in Slurm agree with the verdict. Return False if this must be tried again."""
    name = node.variable("TRAINYARD_NODE")
    shown = node.run(["scontrol", "-o", "show", "node", name], _SECONDS)
    found = parse(shown.output) if shown.code == 0 else None
    if found is None:
        return False
    if wanted is None and "DOWN" in found.flags and found.reason.startswith(_LOST):
        # slurmctld can reach this node again. The restarted slurmd registers, and slurmctld then ends the old jobs.
        return node.run(["systemctl", "restart", "slurmd.service"], _SECONDS).code == 0
    action = decide(found, wanted, checks, proved)
    if action is None:
        return wanted is not None or owner(found.reason, checks) is None
    update = ["scontrol", "update", f"nodename={name}", f"state={action}"]
    if action == "drain":
        update.append(f"reason={wanted}")
    return node.run(update, _SECONDS).code == 0


def requeue_jobs(node: Node) -> bool:
    """Requeue the jobs that run on this node. Return False if this must be tried again.

    After a fatal fault, the other ranks of a job would wait for this node until NCCL's timeout, which can take half an
    hour. Slurm refuses to requeue a job that was submitted with --no-requeue, so this job continues.
    """
    listed = node.run(
        ["squeue", "--noheader", "--states=running", f"--nodelist={node.variable('TRAINYARD_NODE')}", "--format=%A"],
        _SECONDS,
    )
    for job in listed.output.split() if listed.code == 0 else ():
        node.run(["scontrol", "requeue", job], _SECONDS)
    return listed.code == 0


def warn_jobs(node: Node) -> bool:
    """Send the jobs on this node the signal that Slurm sends before a time limit. Return False to try again.

    A job with checkpoints that was submitted with `yard submit` then writes a checkpoint and is requeued. Other scripts
    receive no signal, because SIGUSR2 ends a script without a handler.
    """
    listed = node.run(
        ["squeue", "--noheader", "--states=running", f"--nodelist={node.variable('TRAINYARD_NODE')}", "--format=%A %o"],
        _SECONDS,
    )
    for line in listed.output.splitlines() if listed.code == 0 else ():
        job, _, command = line.partition(" ")
        if _OWN_SCRIPT.fullmatch(command.rstrip()):
            node.run(["scancel", "--batch", "--signal=USR2", job], _SECONDS)
    return listed.code == 0
