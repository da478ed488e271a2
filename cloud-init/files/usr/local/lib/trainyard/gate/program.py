"""Wait on the head until all nodes are ready, print their progress, and check that jobs can start on every node.

The exit code is 0 if the cluster is ready. Nodes whose stages wait for running jobs are listed but do not count as
failures, because the jobs continue. The exit code is 1 if a node failed or missed its deadline, and stderr contains the
failed stage and the end of its log. A line is printed at least once a minute, because gateways drop idle connections.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from trainyard.faults import BANDWIDTH, CLOSED, GONE, QUARANTINE, cause_of, fault, is_own, operator_in
from trainyard.locks import locked
from trainyard.printable import printable

STATE = Path("/var/lib/trainyard")
SILENCE_SECONDS = 50.0
IDLE_SECONDS = 60.0
"""How much longer the gate waits for nodes whose jobs must end first. Jobs can take days."""
OPEN_SECONDS = 20.0
"""How long the gate waits for closed partitions. trainyard-repair was restarted before, if its parameters changed."""
TAKEN_SECONDS = 2.0
"""How often the gate checks whether a user's job has taken the nodes for which its own task waits."""
JOB_NAME = "trainyard-gate"
SHOWN_NODES = 8
_ERROR_CHARACTERS = 4000
"""How much of the output of ssh is shown."""
DRAINED_BY = {BANDWIDTH: "drained by the bandwidth gate", QUARANTINE: "quarantined by yard heal"}
OUT_OF_SERVICE = "drain,down,fail,maint,no_respond,resv"
BOOTSTRAP = "trainyard-bootstrap.service"
HANDOUT = "trainyard-handout.service"
LOCK = "gate.lock"
"""While the gate holds this lock, trainyard-repair releases the spares so that tasks can run on them."""
BANDWIDTH_GATE = "/usr/local/sbin/trainyard-bandwidth"


def write_line(text: str, stream: TextIO | None = None) -> None:
    """Write a line to `stream` or stdout, and flush it because Python buffers output to a pipe.

    Control characters are escaped, because the text comes from workers and `pulumi up` prints it on a terminal.
    """
    output = stream or sys.stdout
    output.write(f"{printable(text)}\n")
    output.flush()


class Progress:
    """Prints lines with the elapsed time and, after a while without output, what the gate is waiting for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._printed = clock()
        self._lock = threading.Lock()
        self.waiting_for = "the nodes"

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    def print_line(self, line: str) -> None:
        self._printed = self._clock()
        write_line(f"[{self.seconds:5.1f} s] {line}")

    def tick(self) -> None:
        """Print what the gate is waiting for if the last line is older than SILENCE_SECONDS."""
        with self._lock:
            if self.waiting_for and self._clock() - self._printed >= SILENCE_SECONDS:
                self.print_line(f"waiting for {self.waiting_for}")

    def finish(self) -> None:
        """Stop printing progress, so that the result is the last line."""
        with self._lock:
            self.waiting_for = ""

    def watch(self) -> None:
        """Call tick() in a background thread, because some of the gate's commands run for minutes."""
        threading.Thread(target=self._tick_for_ever, daemon=True).start()

    def _tick_for_ever(self) -> None:
        while True:
            time.sleep(5)
            self.tick()


def read_status(path: Path) -> dict[str, Any]:
    """Return the status in this file, or the state "unreached" if the file is missing or invalid.

    Root on a worker can send any text as the worker's status.
    """
    try:
        status = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        status = None
    if not isinstance(status, dict) or not isinstance(status.get("state"), str):
        return {"state": "unreached", "stage": ""}
    tail = status.get("log_tail")
    return {"stage": "", **status, "log_tail": tail if isinstance(tail, list) else []}


def head_status() -> dict[str, Any]:
    """Return the head's status, or the state "booting" if the stored status is from an earlier boot."""
    status = read_status(STATE / "status.json")
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return status if status.get("boot_id") == boot_id else {"state": "booting", "stage": ""}


def failure_message(name: str, status: dict[str, Any]) -> str:
    """Return a message about a failed or late node, with its stage, command, exit code and the end of its log."""
    error = STATE / "nodes" / f"{name}.error"
    ssh_error = error.read_text(errors="replace")[-_ERROR_CHARACTERS:].strip() if error.exists() else ""
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
    """Return a text that lists the nodes that are not ready, with each node's state and its duration so far."""
    late = [
        f"{name} ({state}, {seconds - since:.0f} s)"
        for name, (state, since) in shown.items()
        if not state.startswith("ready")
    ]
    rest = len(late) - SHOWN_NODES
    return ", ".join(late[:SHOWN_NODES]) + (f" and {rest} more" if rest > 0 else "")


def describe_state(status: dict[str, Any]) -> str:
    """Return a node's state, stage and reason as one text."""
    reason = f": {status['reason']}" if status.get("reason") else ""
    # During an update, running nodes have these states too.
    state = {"unreached": "connecting", "booting": "starting"}.get(status["state"], status["state"])
    return f"{state} {status.get('stage', '')}".strip() + reason


def wait_for_nodes(
    head: str, workers: list[str], head_minutes: float, worker_minutes: float, progress: Progress
) -> tuple[list[str], dict[str, str]]:
    """Wait until all nodes are ready. Return error messages and a mapping from waiting node to reason.

    Once the head is ready, the function does not wait for nodes that are powered down.
    There is a message for each node that failed or missed its deadline. A waiting node becomes ready when its jobs have
    ended. Because this can take days, the function waits only IDLE_SECONDS after all other nodes are ready.
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
        unready = [name for name, status in now.items() if status["state"] not in {"ready", "waiting"}]
        if unready and head not in unready:
            off = powered_down()
            unready = [name for name in unready if name not in off]
        failed = [name for name in unready if now[name]["state"] == "failed"]
        late = [name for name in unready if minutes > (head_minutes if name == head else worker_minutes)]
        if failed or late:
            return [failure_message(name, now[name]) for name in dict.fromkeys([*failed, *late])], waiting
        if not unready:
            idle_deadline = seconds + IDLE_SECONDS if idle_deadline is None else idle_deadline
            if not waiting or seconds > idle_deadline:
                return [], waiting
        time.sleep(0.5)


def check_partitions(nodes: list[list[str]]) -> list[str]:
    """Return a message for each same_fabric group whose nodes are not all in one InfiniBand partition.

    Each list in `nodes` contains a worker's name, address, group, number of GPUs and fabric (`same_fabric` or `any`).
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
    return subprocess.run(command, capture_output=True, text=True, check=False)


def nodes_in(states: str) -> set[str]:
    """Return the names of the nodes in these states (separated by commas)."""
    return set(run("sinfo", "-h", "-N", "-t", states, "-o", "%N").stdout.split())


def idle_partitions() -> dict[str, list[str]]:
    """Return a mapping from each idle node to its partitions."""
    found: dict[str, list[str]] = {}
    for line in run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N %R").stdout.splitlines():
        name, partition = line.split()
        found.setdefault(name, []).append(partition)
    return found


def _groups_have(key: str) -> bool:
    """Return whether any node group has this key in repair.json, with a value that is not 0."""
    site = STATE / "handover" / "repair.json"
    return site.exists() and any(group.get(key) for group in json.loads(site.read_text())["groups"].values())


def powered_down() -> set[str]:
    """Return the nodes of elastic groups whose machines are off, stopping, or starting for a job."""
    return nodes_in("powered_down,powering_down,powering_up") if _groups_have("elastic") else set()


def reasons(states: str) -> dict[str, str]:
    """Return a mapping from node name to drain reason for the nodes in these states (separated by commas)."""
    rows = run("sinfo", "-h", "-N", "-t", states, "-o", "%N %E").stdout.splitlines()
    return {name: reason for name, _, reason in (row.partition(" ") for row in rows)}


def drained_nodes() -> dict[str, str]:
    """Return a mapping from node to who took it out of service, for nodes without which the cluster can be ready.

    These are the nodes whose reason has a cause in DRAINED_BY or comes from `yard drain`.
    """
    found = {}
    for name, reason in reasons("drain").items():
        if why := DRAINED_BY.get(cause_of(reason) or ""):
            found[name] = why
        elif operator := operator_in(reason):
            found[name] = f"drained by {operator}"
    return found


def _fix(name: str, reason: str) -> str:
    if is_own(reason):
        return "correct the fault. The node returns to service when its check passes (see `yard doctor`)"
    if fault(reason) == GONE:
        return f"check on the console of {name} why the machine rebooted or does not respond"
    return f"correct the cause, then run `yard undrain {name}`"


def describe_unavailable(nodes: set[str]) -> str:
    """Return a line for each of these nodes that is out of service: its name, state, reason and fix."""
    rows = run("sinfo", "-h", "-N", "-t", OUT_OF_SERVICE, "-o", "%N %T %E").stdout.splitlines()
    found = sorted({(*row.split(maxsplit=2), "", "")[:3] for row in rows})
    return "\n".join(
        f"  {name} is {state}: {reason}. Fix: {_fix(name, reason)}, then run `pulumi up` again"
        for name, state, reason in found
        if name in nodes
    )


def _named(nodes: set[str]) -> str:
    return ", ".join(sorted(nodes)[:SHOWN_NODES]) + (" and more" if len(nodes) > SHOWN_NODES else "")


def check_slurm(workers: list[str], seconds: float, progress: Progress) -> str | None:
    """Start a task on every node that is not busy, and return an error message, if any.

    A waiting job can start as soon as the nodes have passed their own checks, and thus before the gate's task.
    """
    deadline = time.monotonic() + seconds
    refused: str | None = None
    # A node that is running jobs needs no further check.
    while rest := set(workers) - (busy := nodes_in("alloc,mix,comp")):
        progress.waiting_for = f"Slurm to start a task on {_named(rest)}"
        if time.monotonic() > deadline:
            if unavailable := describe_unavailable(rest):
                return f"Slurm starts no task on these nodes:\n{unavailable}"
            return refused or "some nodes are not available in Slurm:\n" + run("sinfo", "-N", "-l").stdout
        idle = idle_partitions()
        if rest <= idle.keys():
            refused = start_tasks({name: idle[name] for name in rest})
            if refused is None:
                break
            # A user's job may have taken the nodes, or a pending job may reserve them. A node that was drained in the
            # meantime may return to service before the deadline. Otherwise, the nodes are faulty.
            if rest <= nodes_in("idle") and not run("squeue", "-h", "-t", "pending", "-o", "%A").stdout.strip():
                return refused
        time.sleep(0.5)
    if jobs_on := busy & set(workers):
        progress.print_line(f"jobs are running on {_named(jobs_on)}, so the gate started no task there")
    return None


def wait_for_spares() -> None:
    """Wait until trainyard-repair has released the spares."""
    if not _groups_have("spares"):
        return
    deadline = time.monotonic() + 30
    while "ReservationName=spares-" in run("scontrol", "-o", "show", "reservation").stdout:
        if time.monotonic() > deadline:
            return
        time.sleep(0.5)


def closed() -> dict[str, str]:
    """Return a mapping from each partition that trainyard-repair has set down to the reason."""
    try:
        return {name: reason for name, (reason, _) in json.loads((STATE / CLOSED).read_text()).items()}
    except (OSError, ValueError):
        return {}


def wait_for_partitions() -> dict[str, str]:
    """Return the closed partitions. After a change, trainyard-repair takes some seconds to set partitions up again."""
    deadline = time.monotonic() + OPEN_SECONDS
    while (found := closed()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return found


def start_tasks(nodes: Mapping[str, list[str]]) -> str | None:
    """As the job user, start a task on each node in each of its partitions. Return an error message, if any.

    `nodes` is a mapping from node name to partitions.
    """
    by_partition: dict[str, list[str]] = {}
    for name, partitions in sorted(nodes.items()):
        for partition in partitions:
            by_partition.setdefault(partition, []).append(name)
    for partition, names in by_partition.items():
        done = run_unless_taken(
            names,
            "setpriv", "--reuid=trainer", "--regid=trainer", "--init-groups", "--", "timeout", "120",
            "srun", "--job-name", JOB_NAME, "--partition", partition,
            "--nodes", str(len(names)), "--nodelist", ",".join(names), "--mem", "16", "--chdir", "/",
            # With a short time limit, Slurm can start the task before a pending job that needs more nodes.
            "--time", "2", "--immediate=45", "printenv", "SLURMD_NODENAME",
        )  # fmt: skip
        if done.returncode or sorted(done.stdout.split()) != sorted(names):
            return f"srun on partition {partition} failed (exit {done.returncode}):\n{done.stdout}{done.stderr}"
    return None


def run_unless_taken(nodes: Sequence[str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command that contains srun. End it if srun still waits for nodes of which a user's job has taken one."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                output, errors = process.communicate(timeout=TAKEN_SECONDS)
            except subprocess.TimeoutExpired:
                # In this order, the allocated node cannot be the task's own.
                taken = nodes_in("alloc") & set(nodes)
                if taken and run("squeue", "-h", "-t", "pending", "-n", JOB_NAME, "-o", "%A").stdout.strip():
                    process.terminate()
            else:
                return subprocess.CompletedProcess(command, process.returncode, output, errors)


def main() -> int:
    """Run the gate while the spares are released, and return the exit code."""
    with locked(STATE / LOCK, fcntl.LOCK_SH):
        return run_gate()


def run_gate() -> int:
    """Wait for the nodes, check them, print the result, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head-minutes", type=float, default=20.0)
    parser.add_argument("--worker-minutes", type=float, default=45.0)
    arguments = parser.parse_args()
    parameters = dict(line.split("=", 1) for line in Path("/etc/trainyard/node.env").read_text().splitlines())
    head = parameters["TRAINYARD_NODE"]
    nodes = [line.split() for line in (STATE / "handover" / "nodes").read_text().splitlines() if line.strip()]
    workers = [node[0] for node in nodes]
    bootstrap, handout = run("systemctl", "show", "-p", "ActiveState", "--value", BOOTSTRAP, HANDOUT).stdout.split()
    if bootstrap == "failed":
        # If the bootstrap has failed, it must run again because its status is old.
        (STATE / "status.json").unlink(missing_ok=True)
        run("systemctl", "restart", "--no-block", BOOTSTRAP)
    if handout != "active":
        # Without this service, the workers' statuses may be old.
        run("systemctl", "restart", HANDOUT)
        time.sleep(1)
    progress = Progress()
    progress.watch()
    problems, waiting = wait_for_nodes(head, workers, arguments.head_minutes, arguments.worker_minutes, progress)
    problems = problems or check_partitions(nodes)
    idle = [name for name in workers if name not in waiting]
    slurm = parameters["TRAINYARD_SCHEDULER"] == "slurm"
    drained = drained_nodes() if slurm and not problems else {}
    off = powered_down() if slurm and not problems else set()
    shut = wait_for_partitions() if slurm and not problems else {}
    untested = {
        name: f"no task was started on them, because {shut[group]}" for name, _, group, *_ in nodes if group in shut
    }
    if not problems:
        progress.waiting_for = f"an SSH login on each of {1 + len(workers)} hosts"
        usable = [name for name in idle if name not in drained and name not in off and name not in untested]
        if slurm:
            wait_for_spares()
        problem = check_slurm(usable, 300, progress) if slurm else check_ssh([head, *workers])
        if problem is None and (STATE / "handover" / "gates.json").exists():
            problem = check_bandwidth(progress)
            drained = drained_nodes()
        problems = [problem] if problem else []
    progress.finish()
    for problem in problems:
        write_line(problem, sys.stderr)
    if problems:
        return 1
    for name, reason in waiting.items():
        write_line(f"{name}: {reason}. It finishes without another `pulumi up` when its jobs have ended")
    out = {name: why for name, why in sorted(drained.items()) if name in idle}
    out |= {name: "powered down until a job needs them" for name in sorted(off) if name in idle}
    out |= {name: why for name, why in sorted(untested.items()) if name in idle and name not in out}
    rest = f"; {len(waiting)} wait for their jobs to end" if waiting else ""
    for why in dict.fromkeys(out.values()):
        rest += f"; {why}: {', '.join(name for name in out if out[name] == why)}"
    write_line(f"{1 + len(workers) - len(waiting) - len(out)} nodes are ready{rest}")
    return 0


def check_bandwidth(progress: Progress) -> str | None:
    """Measure all-reduce, print the results as they arrive, and return an error message, if any."""
    progress.waiting_for = "the measurement of all-reduce"
    with subprocess.Popen([BANDWIDTH_GATE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            progress.print_line(line.rstrip())
        errors = (process.stderr.read() if process.stderr else "").strip()
    return errors or f"{BANDWIDTH_GATE} failed" if process.returncode else None


def check_ssh(hosts: list[str]) -> str | None:
    """As the job user, log in to every host (including the head) over SSH. Return an error message, if any."""
    done = run(
        "setpriv", "--reuid=trainer", "--regid=trainer", "--init-groups", "--", "env", "HOME=/home/trainer",
        "pdsh", "-R", "ssh", "-S", "-f", "64", "-t", "30", "-u", "120", "-w", ",".join(hosts),
        ". /etc/trainyard/node.env && echo $TRAINYARD_NODE",
    )  # fmt: skip
    missing = sorted(set(hosts) - {line.partition(": ")[2] for line in done.stdout.splitlines()})
    return f"the user trainer cannot connect to {', '.join(missing)} over SSH:\n{done.stderr}" if missing else None
