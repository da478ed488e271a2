"""The states of the nodes, which they report to the head."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from gate.progress import Progress

STATE = Path("/var/lib/trainyard")
IDLE_SECONDS = 60.0
"""Time that the gate waits for nodes whose jobs must end first. Jobs can take days."""
SHOWN_NODES = 8


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
