"""Checks with Slurm: which nodes are idle, busy or drained, and whether a task starts on each node."""

from __future__ import annotations

import subprocess
import time

from gate.nodes import SHOWN_NODES
from gate.progress import Progress

SPARES_SECONDS = 30.0
DRAINED_BY = {"TY:bandwidth:": "drained by the bandwidth gate", "TY:quarantine:": "quarantined by yard heal"}


OUT_OF_SERVICE = "drain,down,fail,maint,no_respond,resv"
FIXES = {
    "TY:": "correct the fault. The node returns to service when its check passes (see `yard doctor`)",
    "Not responding": "check on the console of {name} whether the machine runs",
    "": "correct the cause, then run `sudo scontrol update nodename={name} state=resume` on the head",
}
"""Fix by the beginning of the reason."""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command and capture its output."""
    return subprocess.run(command, capture_output=True, text=True, check=False)


def idle_nodes() -> set[str]:
    """Return the nodes on which Slurm can start a job immediately."""
    return set(run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").stdout.split())


def reasons(states: str) -> dict[str, str]:
    """Return the reasons of the nodes in one of the states (comma-separated), by name."""
    rows = run("sinfo", "-h", "-N", "-t", states, "-o", "%N %E").stdout.splitlines()
    return {name: reason for name, _, reason in (row.partition(" ") for row in rows)}


def drained_nodes() -> dict[str, str]:
    """Return the nodes that the bandwidth gate or `yard heal` has drained. The cluster can be ready without them."""
    return {
        name: text
        for name, reason in reasons("drain").items()
        for prefix, text in DRAINED_BY.items()
        if reason.startswith(prefix)
    }


def describe_unavailable(nodes: set[str]) -> str:
    """Return a line for each of the nodes that is out of service: name, state, reason and fix."""
    lines = []
    rows = run("sinfo", "-h", "-N", "-t", OUT_OF_SERVICE, "-o", "%N %T %E").stdout.splitlines()
    for name, state, reason in sorted({(*row.split(maxsplit=2), "", "")[:3] for row in rows}):
        if name in nodes:
            fix = next(text for prefix, text in FIXES.items() if reason.startswith(prefix)).format(name=name)
            lines.append(f"  {name} is {state}: {reason}. Fix: {fix}, then run `pulumi up` again")
    return "\n".join(lines)


def busy_nodes() -> set[str]:
    """Return the nodes that run jobs. These nodes need no further check."""
    return set(run("sinfo", "-h", "-N", "-t", "alloc,mix,comp", "-o", "%N").stdout.split())


def check_slurm(workers: list[str], seconds: float, progress: Progress) -> str | None:
    """Start a task on every node that is not busy. Return None, or an error message."""
    deadline = time.monotonic() + seconds
    refused: str | None = None
    while rest := set(workers) - busy_nodes():
        names = ", ".join(sorted(rest)[:SHOWN_NODES]) + (" and more" if len(rest) > SHOWN_NODES else "")
        progress.waiting_for = f"Slurm to start a task on {names}"
        if time.monotonic() > deadline:
            if unavailable := describe_unavailable(rest):
                return f"Slurm starts no task on these nodes:\n{unavailable}"
            return refused or "some nodes are not available in Slurm:\n" + run("sinfo", "-N", "-l").stdout
        if rest <= idle_nodes():
            refused = start_tasks(rest)
            if refused is None:
                return None
            # A user's job may have taken the nodes, or a pending job may reserve them. Otherwise the nodes are faulty.
            # A node that was drained in the meantime may return to service until the deadline.
            if rest <= idle_nodes() and not run("squeue", "-h", "-t", "pending", "-o", "%A").stdout.strip():
                return refused
        time.sleep(0.5)
    return None


def wait_for_spares() -> None:
    """Wait until trainyard-repair has released the spares."""
    deadline = time.monotonic() + SPARES_SECONDS
    while "ReservationName=spares-" in run("scontrol", "-o", "show", "reservation").stdout:
        if time.monotonic() > deadline:
            return
        time.sleep(0.5)


def start_tasks(nodes: set[str]) -> str | None:
    """Start a task on each node, in each of its partitions, as the job user. Return None, or an error message."""
    by_partition: dict[str, list[str]] = {}
    for line in run("sinfo", "-h", "-N", "-o", "%N %R").stdout.splitlines():
        name, partition = line.split()
        if name in nodes:
            by_partition.setdefault(partition, []).append(name)
    for partition, names in by_partition.items():
        done = run(
            "setpriv", "--reuid=trainer", "--regid=trainer", "--init-groups", "--", "timeout", "120",
            "srun", "--partition", partition,
            "--nodes", str(len(names)), "--nodelist", ",".join(names), "--mem", "16", "--chdir", "/",
            # A short time limit lets Slurm backfill the task before a pending job that needs more nodes.
            "--time", "2", "--immediate=45", "printenv", "SLURMD_NODENAME",
        )  # fmt: skip
        if done.returncode or sorted(done.stdout.split()) != sorted(names):
            return f"srun on partition {partition} failed (exit {done.returncode}):\n{done.stdout}{done.stderr}"
    return None
