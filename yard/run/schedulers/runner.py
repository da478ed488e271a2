"""Clusters without a scheduler. yard uploads its runner with each job, and the runner starts and watches the job."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, Problem
from yard.job.array import parse_array
from yard.job.loader import LoadedJob
from yard.job.placement import Placement, drives_gpus
from yard.run.queue import Job
from yard.run.schedulers.session import Session, shell_line, until_disconnected
from yard.run.schedulers.unpack import unpack
from yard.stack.remote import Remote

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
"""SSH command on the head, which stores a private key for the nodes and the nodes' host keys."""
_QUERY = Path(__file__).parent / "query.py"
_RUNNER = Path(__file__).parent.parent / "runner"


class Runner:
    """Runs the jobs of clusters with `scheduler: none`. The class Slurm has the same attributes and methods."""

    script = "job.sh"
    shell = "direct.sh"
    source_lines = ('source "$RUN_DIR/yard.sh"',)

    def problems(self, job: LoadedJob) -> Iterator[Problem]:
        """Yield a problem for each value that needs Slurm."""
        spec = job.spec
        if job.launcher.needs_slurm:
            rule = f"{spec.launcher} needs Slurm, which this cluster does not run"
            yield Problem(path="launcher", rule=rule, fix="use launcher deepspeed-pdsh or deepspeed-no-ssh")
        if spec.runtime == "pyxis":
            rule = "pyxis is a Slurm plugin, and this cluster does not run Slurm"
            yield Problem(path="container.runtime", rule=rule, fix="use docker or enroot")
        for key in ("cpus_per_task", "memory_per_node", "mpi", "after"):
            if getattr(spec, key):
                yield Problem(path=key, rule="needs a scheduler, which this cluster does not run", fix="remove it")
        array = parse_array(spec.array) if spec.array is not None else None
        if array is not None and array.at_once is not None:
            rule = "without a scheduler, free nodes alone limit how many jobs run at the same time"
            yield Problem(path="array", rule=rule, fix=f"remove '%{array.at_once}'")
        if spec.chain > 1:
            rule = "without a scheduler, a job with checkpoints restarts at its time limit and needs no chain"
            yield Problem(path="chain", rule=rule, fix="remove it")

    def header(self, job: LoadedJob, placement: Placement) -> list[str]:
        """Return the first comment in a job's script."""
        return ["# Written by yard. Code shared by all jobs is in yard.sh. runner/ starts the tasks."]

    def settings(self, job: LoadedJob, placement: Placement) -> list[str]:
        """Return the line that sets CUDA_VISIBLE_DEVICES if the job does not use all GPUs on a node."""
        node, gpus = placement.hosts[0], placement.gpus_per_node
        if not drives_gpus(node) or gpus == node.gpus:
            return []
        return [f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(gpus)))}"]

    def files(self, job: LoadedJob, placement: Placement) -> Mapping[str, str]:
        """Return the additional files for a job by name: job.json and the runner."""
        runner = {f"runner/{path.name}": path.read_text() for path in sorted(_RUNNER.glob("*.py"))}
        return {"job.json": render_request(job, placement), **runner}

    def submit_line(self, jobs_dir: str, name: str, chain: int, script: str = script, after: Sequence[str] = ()) -> str:
        """Return a shell command that unpacks a job's tar archive from stdin, starts the job and prints its number."""
        folder = shlex.quote(f"{jobs_dir}/{name}")
        return (
            f"set -eu; umask 022; mkdir -p {shlex.quote(jobs_dir)}; cd {shlex.quote(jobs_dir)}; {unpack(name)}; "
            f"cd {folder}; python3 -m runner submit {folder}"
        )

    def session(
        self, remote: Remote, job: LoadedJob, placement: Placement, command: str | None, *, terminal: bool
    ) -> Session:
        """Return a session on a node of the group that runs no job. The runner does not reserve the node.

        Raises JobError if all nodes run jobs, or if the session needs more than one node.
        """
        if placement.nodes > 1:
            raise JobError("without a scheduler, a session uses one node; omit --nodes, or use `yard submit`")
        busy = self._query(remote, "nodes")
        node = next((host.name for host in placement.hosts if host.name not in busy), None)
        if node is None:
            raise JobError(
                f"all nodes in group '{placement.group}' run jobs; wait until a job has ended, or log in with "
                f"`yard ssh {placement.hosts[0].name}`"
            )
        line = shell_line(command, *self.settings(job, placement))
        return Session(host=node, line=line if terminal else until_disconnected(line), node=node)

    def session_node(self, remote: Remote, session: Session) -> str | None:
        """Return the node of a session."""
        return session.node

    def recent(self, remote: Remote, days: int) -> list[Job]:
        """Return the active jobs and the jobs that ended in the last `days` days, newest first."""
        return [Job(**row) for row in self._query(remote, "jobs", str(days))]

    def find(self, remote: Remote, job: int) -> Job | None:
        """Return a job, or None if it does not exist."""
        return next((Job(**row) for row in self._query(remote, "job", str(job))), None)

    def cancel(self, remote: Remote, jobs: Sequence[Job]) -> None:
        """Signal the runners of the jobs. A runner stops the ranks of its job and then exits."""
        self._query(remote, "cancel", *(str(job.id) for job in jobs))

    def resume(self, remote: Remote, job: Job) -> int:
        """Start the runner again. Returns the job number, which does not change."""
        folder = shlex.quote(job.run_dir)
        remote.run(f"cd {folder} && python3 -m runner resume {folder}")
        return job.id

    def nodes(self, remote: Remote) -> dict[str, tuple[str, str]]:
        """Return (state, reason) for each node. Nodes without a job are 'idle', even if they do not respond."""
        busy = self._query(remote, "nodes")
        return {node.name: ("allocated" if node.name in busy else "idle", "") for node in remote.stack.cluster.nodes}

    def _query(self, remote: Remote, *words: str) -> Any:
        folder = shlex.quote(f"{remote.stack.cluster.shared_path}/jobs")
        return json.loads(remote.run(f"python3 - {folder} {' '.join(words)}", stdin=_QUERY.read_bytes()))


def render_request(job: LoadedJob, placement: Placement) -> str:
    """Return the contents of job.json. The keys are the fields of JobRequest in runner/job.py."""
    spec, chosen = job.spec, job.launcher
    docker = spec.runtime == "docker"
    request = {
        "name": spec.name,
        "group": placement.group,
        "nodes": placement.nodes,
        "min_nodes": (spec.min_nodes or 1) if chosen.elastic else placement.nodes,
        "hosts": [{"name": host.name, "ip": host.private_ip} for host in placement.hosts],
        "tasks": chosen.tasks.value,
        "others": docker and chosen.over_ssh,
        "leaves": docker,
        "tasks_per_node": placement.tasks_per_node,
        "gpus_per_node": placement.gpus_per_node,
        "retries": spec.retries,
        "seconds": spec.seconds,
        "warn_seconds": spec.warning_seconds,
        "heartbeat_seconds": spec.heartbeat_seconds,
        "checkpoint_dir": spec.checkpoint_dir or "",
        "ssh": _SSH,
    }
    return json.dumps(request, indent=1) + "\n"
