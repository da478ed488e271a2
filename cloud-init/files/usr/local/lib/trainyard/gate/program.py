"""Wait on the head until all nodes are ready, print their progress, and check that jobs can start on every node.

Exit code 0: the cluster is ready. Nodes whose stages wait for running jobs are listed, but do not count as failures,
because the jobs continue. Exit code 1: a node failed or missed the deadline of its role. The failed stage and the end
of its log are then on stderr. A line is printed at least every minute, because gateways drop idle connections.
"""

from __future__ import annotations

import argparse
import fcntl
import subprocess
import sys
import time
from pathlib import Path

from gate.nodes import (
    DRAINED_BY,
    STATE,
    Progress,
    check_partitions,
    check_slurm,
    drained_nodes,
    run,
    wait_for_nodes,
    wait_for_spares,
    write_line,
)

BOOTSTRAP = "trainyard-bootstrap.service"
HANDOUT = "trainyard-handout.service"
LOCK = "gate.lock"
"""While the gate holds a lock on this file, trainyard-repair releases the spares, so that tasks can run on them."""
BANDWIDTH = "/usr/local/sbin/trainyard-bandwidth"


def main() -> int:
    """Run the gate while the spares are released. Return the exit code."""
    with (STATE / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        return run_gate()


def run_gate() -> int:
    """Wait for the nodes, check them, and print the result. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--head-minutes", type=float, default=20.0)
    parser.add_argument("--worker-minutes", type=float, default=45.0)
    arguments = parser.parse_args()
    parameters = dict(line.split("=", 1) for line in Path("/etc/trainyard/node.env").read_text().splitlines())
    head = parameters["TRAINYARD_NODE"]
    nodes = [line.split() for line in (STATE / "handover" / "nodes").read_text().splitlines() if line.strip()]
    workers = [node[0] for node in nodes]
    if run("systemctl", "is-failed", "--quiet", BOOTSTRAP).returncode == 0:
        # After a failure, run the bootstrap again instead of reporting the old status.
        (STATE / "status.json").unlink(missing_ok=True)
        run("systemctl", "restart", "--no-block", BOOTSTRAP)
    if run("systemctl", "is-active", "--quiet", HANDOUT).returncode:
        # While this service is not running, the stored statuses of the workers may be old.
        run("systemctl", "restart", HANDOUT)
        time.sleep(1)
    progress = Progress()
    progress.watch()
    problems, waiting = wait_for_nodes(head, workers, arguments.head_minutes, arguments.worker_minutes, progress)
    problems = problems or check_partitions(nodes)
    idle = [name for name in workers if name not in waiting]
    slurm = parameters["TRAINYARD_SCHEDULER"] == "slurm"
    if not problems:
        progress.waiting_for = f"an SSH login on each of {1 + len(workers)} hosts"
        drained = drained_nodes() if slurm else {}
        usable = [name for name in idle if name not in drained]
        if slurm:
            wait_for_spares()
        problem = check_slurm(usable, 300, progress) if slurm else check_ssh([head, *workers])
        problem = problem or (check_bandwidth(progress) if (STATE / "handover" / "gates.json").exists() else None)
        problems = [problem] if problem else []
    progress.finish()
    for problem in problems:
        write_line(problem, sys.stderr)
    if problems:
        return 1
    for name, reason in waiting.items():
        write_line(f"{name}: {reason}. It finishes without another `pulumi up` when its jobs have ended")
    out = {name: why for name, why in sorted(drained_nodes().items()) if name in idle} if slurm else {}
    rest = f"; {len(waiting)} wait for their jobs to end" if waiting else ""
    for why in DRAINED_BY.values():
        names = ", ".join(name for name in out if out[name] == why)
        rest += f"; {why}: {names}" if names else ""
    write_line(f"{1 + len(workers) - len(waiting) - len(out)} nodes are ready{rest}")
    return 0


def check_bandwidth(progress: Progress) -> str | None:
    """Measure all-reduce, and print the results as they arrive. Return None, or an error message."""
    progress.waiting_for = "the measurement of all-reduce"
    with subprocess.Popen([BANDWIDTH], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            progress.print_line(line.rstrip())
        errors = (process.stderr.read() if process.stderr else "").strip()
    return errors or f"{BANDWIDTH} failed" if process.returncode else None


def check_ssh(hosts: list[str]) -> str | None:
    """Connect to every host, including the head, over SSH as the job user. Return None, or an error message."""
    done = run(
        "setpriv", "--reuid=trainer", "--regid=trainer", "--init-groups", "--", "env", "HOME=/home/trainer",
        "pdsh", "-R", "ssh", "-S", "-f", "64", "-t", "30", "-u", "120", "-w", ",".join(hosts),
        ". /etc/trainyard/node.env && echo $TRAINYARD_NODE",
    )  # fmt: skip
    missing = sorted(set(hosts) - {line.partition(": ")[2] for line in done.stdout.splitlines()})
    return f"the user trainer cannot connect to {', '.join(missing)} over SSH:\n{done.stderr}" if missing else None
