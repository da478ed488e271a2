"""The states of the nodes, as they report them to the head and as Slurm lists them, and the output of the gate."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from trainyard.faults import BANDWIDTH, GONE, QUARANTINE, cause_of, fault, is_own
from trainyard.printable import printable

STATE = Path("/var/lib/trainyard")
SILENCE_SECONDS = 50.0
IDLE_SECONDS = 60.0
"""Time that the gate waits for nodes whose jobs must end first. Jobs can take days."""
SPARES_SECONDS = 30.0
SHOWN_NODES = 8
DRAINED_BY = {BANDWIDTH: "drained by the bandwidth gate", QUARANTINE: "quarantined by yard heal"}
OUT_OF_SERVICE = "drain,down,fail,maint,no_respond,resv"


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line to the stream or stdout, and flush it, because Python buffers output to a pipe.

    The text is escaped, because it comes from workers, and `pulumi up` prints it on a terminal.
    """
    output = stream or sys.stdout
    output.write(f"{printable(text)}\n")
    output.flush()


class Progress:
    """Prints lines with the elapsed time, and the pending condition after a pause without output."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._printed = clock()
        self._lock = threading.Lock()
        self.waiting_for = "the nodes"

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._start

    def print_line(self, line: str) -> None:
        """Print a line with the elapsed time."""
        self._printed = self._clock()
        write_line(f"[{self.seconds:5.1f} s] {line}")

    def tick(self) -> None:
        """Print the pending condition if the last line is older than SILENCE_SECONDS."""
        with self._lock:
            if self.waiting_for and self._clock() - self._printed >= SILENCE_SECONDS:
                self.print_line(f"waiting for {self.waiting_for}")

    def finish(self) -> None:
        """Stop printing, so that the result is the last line."""
        with self._lock:
            self.waiting_for = ""

    def watch(self) -> None:
        """Call tick() in a background thread, because some commands of the gate run for minutes."""
        threading.Thread(target=self._tick_for_ever, daemon=True).start()

    def _tick_for_ever(self) -> None:
        while True:
            time.sleep(5)
            self.tick()


def read_status(path: Path) -> dict[str, Any]:
    """Return the status in a file, or the state "unreached" if the file is missing or invalid."""
    try:
        status: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {"state": "unreached", "stage": ""}
    return status


def head_status() -> dict[str, Any]:
    """Return the head's status, or the state "booting" if the status is from an earlier boot."""
    status = read_status(STATE / "status.json")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return status if status.get("boot_id") == boot_id else {"state": "booting", "stage": ""}


def failure_message(name: str, status: dict[str, Any]) -> str:
    """Return a message about a failed or late node: stage, command, exit code and the end of the log."""
    error = STATE / "nodes" / f"{name}.error"
    ssh_error = error.read_text().strip() if error.exists() else ""
    if status["state"] == "failed" and status["stage"] == "hand-over" and ssh_error:
        return f"{name}: {ssh_error}"
    if status["state"] == "failed":
        tail = "\n".join(f"    {line}" for line in status.get("log_tail", []))
        return (
            f"{name}: stage {status['stage']} failed: {status.get('command')} (exit code {status.get('exit_code')})\n"
            f"{tail}\n  full log: /var/log/trainyard/{status['stage']}.log on {name}"
        )
    return f"{name}: still '{status['state']} {status.get('stage', '')}' at the deadline. {ssh_error}".rstrip()


def describe_unready(shown: dict[str, tuple[str, float]], seconds: float) -> str:
    """Return the nodes that are not ready, with their states and the seconds since the last change of state."""
    late = [
        f"{name} ({state}, {seconds - since:.0f} s)"
        for name, (state, since) in shown.items()
        if not state.startswith("ready")
    ]
    rest = len(late) - SHOWN_NODES
    return ", ".join(late[:SHOWN_NODES]) + (f" and {rest} more" if rest > 0 else "")


def describe_state(status: dict[str, Any]) -> str:
    """Return the state, the stage and the reason of a node's status."""
    reason = f": {status['reason']}" if status.get("reason") else ""
    return f"{status['state']} {status.get('stage', '')}".strip() + reason


def wait_for_nodes(
    head: str, workers: list[str], head_minutes: float, worker_minutes: float, progress: Progress
) -> tuple[list[str], dict[str, str]]:
    """Wait until all nodes are ready. Return error messages, and the reasons of waiting nodes by node name.

    There is a message for each node that failed or missed its deadline. A waiting node becomes ready after its jobs
    have ended. Once all other nodes are ready, the function waits at most IDLE_SECONDS for these nodes.
    """
    shown: dict[str, tuple[str, float]] = {}
    idle_deadline: float | None = None
    while True:
        now = {head: head_status(), **{name: read_status(STATE / "nodes" / f"{name}.json") for name in workers}}
        seconds = progress.seconds
        minutes = seconds / 60
        for name, status in now.items():
            state = describe_state(status)
            if name not in shown or shown[name][0] != state:
                shown[name] = (state, seconds)
                progress.print_line(f"{name}: {state}")
        progress.waiting_for = describe_unready(shown, seconds)
        waiting = {name: str(status.get("reason")) for name, status in now.items() if status["state"] == "waiting"}
        late = [
            name
            for name, status in now.items()
            if status["state"] != "ready"
            and name not in waiting
            and minutes > (head_minutes if name == head else worker_minutes)
        ]
        failed = [name for name, status in now.items() if status["state"] == "failed"]
        if failed or late:
            return [failure_message(name, now[name]) for name in dict.fromkeys([*failed, *late])], waiting
        if all(status["state"] == "ready" or name in waiting for name, status in now.items()):
            idle_deadline = seconds + IDLE_SECONDS if idle_deadline is None else idle_deadline
            if not waiting or seconds > idle_deadline:
                return [], waiting
        time.sleep(0.5)


def check_partitions(nodes: list[list[str]]) -> list[str]:
    """Return a message for each same_fabric group whose nodes are not all in one InfiniBand partition.

    `nodes`: name, address, group, number of GPUs and fabric (`same_fabric` or `any`) of each worker.
    """
    groups: dict[str, dict[str, list[str]]] = {}
    for name, _, group, _, fabric in nodes:
        if fabric == "same_fabric":
            partition = str(read_status(STATE / "nodes" / f"{name}.json").get("partition") or "no partition")
            groups.setdefault(group, {}).setdefault(partition, []).append(name)
    return [
        f"group {group}: placement same_fabric needs all nodes in one InfiniBand partition, but the nodes report "
        + "; ".join(f"{partition}: {', '.join(names)}" for partition, names in sorted(found.items()))
        + ". Nodes in different partitions cannot communicate over InfiniBand. Fix: replace the nodes of the smaller "
        "partition, or all nodes, with pulumi up --target-replace and their URNs."
        for group, found in groups.items()
        if len(found) > 1 or "no partition" in found
    ]


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
    causes = {name: cause_of(reason) or "" for name, reason in reasons("drain").items()}
    return {name: DRAINED_BY[cause] for name, cause in causes.items() if cause in DRAINED_BY}


def _fix(name: str, reason: str) -> str:
    if is_own(reason):
        return "correct the fault. The node returns to service when its check passes (see `yard doctor`)"
    if fault(reason) == GONE:
        return f"check on the console of {name} why the machine rebooted or does not respond"
    return f"correct the cause, then run `sudo scontrol update nodename={name} state=resume` on the head"


def describe_unavailable(nodes: set[str]) -> str:
    """Return a line for each of the nodes that is out of service: name, state, reason and fix."""
    lines = []
    rows = run("sinfo", "-h", "-N", "-t", OUT_OF_SERVICE, "-o", "%N %T %E").stdout.splitlines()
    for name, state, reason in sorted({(*row.split(maxsplit=2), "", "")[:3] for row in rows}):
        if name in nodes:
            lines.append(f"  {name} is {state}: {reason}. Fix: {_fix(name, reason)}, then run `pulumi up` again")
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
