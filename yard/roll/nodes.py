"""States of the nodes in a roll, and the commands that change these states. All functions are pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

REASON = "TY:roll"
"""The drain reason. The stage 90-health returns a new machine's node to service only if the node has this reason."""

_IN_SERVICE = frozenset({"idle", "mixed", "allocated", "completing", "planned", "reserved"})
"""States in sinfo's %T format in which a node runs jobs or can start them (slurm, sinfo(1), "NODE STATE CODES"; read
2026-11-22)."""
_FLAGS = "*~#!%$@^-"
"""Suffixes that sinfo appends to a state, for example '*' if the node does not respond."""

States = Mapping[str, tuple[str, str]]
"""State and reason by node, as sinfo prints them."""


def is_in_service(state: str) -> bool:
    """Return whether Slurm can start jobs on a node in this state. A node that does not respond is not in service."""
    return "*" not in state and state.rstrip(_FLAGS) in _IN_SERVICE


def is_free(state: str) -> bool:
    """Return whether a node in this state runs no jobs and cannot start any."""
    return not is_in_service(state) and not state.startswith("draining")


def next_batch(pending: Sequence[str], group: Collection[str], states: States, max_unavailable: int) -> tuple[str, ...]:
    """Return the nodes to replace next, or () if too many other nodes in the group are out of service.

    Nodes that are out of service come first, because replacing them does not reduce capacity.
    """
    out = {name for name in group if name not in states or not is_in_service(states[name][0])}
    room = max_unavailable - len(out.difference(pending))
    return tuple(sorted(pending, key=lambda name: name not in out)[: max(room, 0)])


def drain_command(names: Collection[str]) -> str:
    """Return the shell command that drains nodes: Slurm starts no further jobs on them."""
    return f"sudo -n scontrol update nodename={_list(names)} state=drain reason={REASON}"


def resume_command(names: Collection[str]) -> str:
    """Return the shell command that returns nodes to service."""
    return f"sudo -n scontrol update nodename={_list(names)} state=resume"


def jobs_command(names: Collection[str]) -> str:
    """Return the shell command that lists the jobs on the nodes, for `parse_jobs`."""
    return f"sudo -n squeue -h -a -t R,CF,CG,S -w {_list(names)} -o '%i|%M|%u|%j'"


@dataclass(frozen=True, kw_only=True)
class HoldingJob:
    """A job to which nodes are allocated. `seconds` is its run time since its last start."""

    id: str
    seconds: int
    line: str


def parse_jobs(text: str) -> list[HoldingJob]:
    """Parse the output of `jobs_command`."""
    jobs = []
    for row in filter(None, text.splitlines()):
        number, elapsed, user, name = row.split("|", 3)
        days, _, clock = elapsed.rpartition("-")
        seconds = int(days or 0) * 86400
        for power, part in enumerate(reversed(clock.split(":"))):
            seconds += int(part) * 60**power
        jobs.append(HoldingJob(id=number, seconds=seconds, line=f"{number} ({name}) of {user}"))
    return jobs


def checkpoint_command(jobs: Collection[str]) -> str:
    """Return the shell command that sends jobs the same signal as Slurm sends before a time limit.

    A job with `checkpoint_dir` that was submitted with `yard submit` then writes a checkpoint and is requeued with the
    same number.
    """
    return f"sudo -n scancel --batch --signal=USR2 {' '.join(sorted(jobs))}"


def _list(names: Collection[str]) -> str:
    return shlex.quote(",".join(names))
