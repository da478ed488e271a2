"""The schedulers: Slurm, whose commands yard runs on the head, and yard's own runner for clusters without a scheduler.

yard uploads the runner with each job. The runner starts and watches the job.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, Problem
from trainyard.faults import is_in_service
from yard.job.launcher import Tasks
from yard.job.loader import LoadedJob
from yard.job.placement import Placement, budget_seconds, drives_gpus
from yard.run.containers import pyxis_options
from yard.run.queue import (
    SACCT_FIELDS,
    Job,
    confirmed,
    parse_authors,
    parse_one,
    parse_sacct,
    parse_scontrol,
    repeated,
    submitted_job,
)
from yard.show import warn
from yard.stack.remote import Remote

_FABRIC = "/etc/trainyard/fabric.env"
"""File on each node that contains NCCL's settings for the node's fabric."""
_HERE = Path(__file__).parent
_ACCOUNTING = "===sacct==="
"""Separates the output of scontrol from the output of sacct."""
_SHOWN = 8
_LINK = 'id=${id%%;*}; ln -sfn "../$name" "../.ids/$id"; echo "$id"'
"""Shell code that links a job's number to its run folder, so that `yard logs` finds the log without Slurm."""
_ALLOCATION = frozenset(f"--{option}" for option in (
    "job-name", "partition", "account", "nodes", "ntasks-per-node", "gpus-per-node", "exclusive", "mem", "time"
))  # fmt: skip
"""The options in a job's script that an interactive session needs and that salloc(1) also accepts."""
SUBMIT_SCRIPT = "submit.sh"
"""File in the run folder that submits a user's Slurm script and prints the job's number."""
_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5")
"""The ssh command that the runner uses on the head. The head stores the key and the nodes' host keys."""


@dataclass(frozen=True, kw_only=True)
class Session:
    """An interactive session: a shell command (`line`) that runs on `host`, or on the head if `host` is None.

    `job_name` is the name of the session's job, or empty without Slurm. `node` is the session's node, or None if Slurm
    chooses it later.
    """

    host: str | None
    line: str
    job_name: str = ""
    node: str | None = None


def shell_line(command: str | None, first: str = "") -> str:
    """Return a shell command that runs `first`, sets NCCL's variables, and runs `command` (None: a login shell)."""
    program = "exec bash -l" if command is None else command
    lines = [first, f"set -a; [ ! -r {_FABRIC} ] || . {_FABRIC}; set +a", program]
    return f"bash -c {shlex.quote('; '.join(line for line in lines if line))}"


def until_disconnected(line: str) -> str:
    """Return a shell command that runs `line` and stops it when the SSH session ends, even without a terminal."""
    return f"exec python3 -c {shlex.quote((_HERE / 'supervisor.py').read_text())} bash -c {shlex.quote(line)}"


def unpack(jobs_dir: str, name: str) -> str:
    """Return shell code that unpacks stdin into the folder `name`, or removes the folder if unpacking fails.

    The folder has mode 0700, because other users must not read its scripts, logs and secrets. Only a subshell sets the
    umask 077, because the umask that is in effect when `sbatch` runs applies to the job's own files. The file
    `run-id` contains a random number, which the torchrun-elastic launcher uses as a secret.
    """
    folder, final, partial = (shlex.quote(text) for text in (jobs_dir, name, f"{name}.part"))
    enter = f"set -eu; umask 022; cd {folder} 2>/dev/null || {{ mkdir -p {folder}; cd {folder}; }}"
    read = f"mkdir {partial}; tar -xC {partial} --strip-components=1 || {{ rm -rf {partial}; exit 1; }}"
    run_id = f"od -An -N16 -tx8 /dev/urandom | tr -d ' \\n' >{partial}/run-id"
    return f"{enter}; (umask 077; {read}; {run_id}); mv -T {partial} {final}"


class Slurm:
    """Runs a cluster's jobs with Slurm. `Runner` has the same attributes and methods.

    `script` is the name of a job's script, `source_lines` are its last lines, and `shell` is the file in this folder
    that becomes the last part of yard.sh.
    """

    script = "job.sbatch"
    shell = "slurm.sh"
    source_lines = (
        "# Slurm runs a copy of this file without arguments. Tasks run this file with an argument.",
        "(($#)) || RUN_DIR=$SLURM_SUBMIT_DIR",
        'source "$RUN_DIR/yard.sh"',
    )

    def problems(self, job: LoadedJob) -> Iterator[Problem]:
        """Yield a problem for each value that Slurm does not support."""
        if job.spec.runtime == "docker":
            rule = "docker starts containers outside Slurm's steps, so Slurm can neither limit nor end them"
            fix = "use enroot or pyxis, or a stack with scheduler: none"
            yield Problem(path="container.runtime", rule=rule, fix=fix)

    def header(self, job: LoadedJob, placement: Placement) -> list[str]:
        """Return the lines near the top of a job's script: a comment, and the #SBATCH options."""
        spec, chosen = job.spec, job.launcher
        options = [
            f"job-name={spec.name}",
            # Slurm tests each partition of a job, so a job starts in the second one if the first one's nodes are down
            # (build_job_queue in job_scheduler.c at slurm-24-11-5-1). A requeued job has all partitions again
            # (rebuild_job_part_list). Read 2026-11-27.
            f"partition={','.join(placement.groups)}",
            f"account={spec.account}" if spec.account is not None else "",
            f"nodes={placement.nodes}",
            f"ntasks-per-node={1 if chosen.tasks is Tasks.NODE else placement.tasks_per_node}",
            f"cpus-per-task={spec.cpus_per_task}" if spec.cpus_per_task is not None else "",
            f"gpus-per-node={placement.gpus_per_node}" if placement.gpus_per_node else "",
            "exclusive" if placement.whole_nodes else "",
            f"mem={spec.memory_per_node or 0}",
            f"time={clock(spec.seconds)}",
            "requeue",
            "no-kill" if chosen.elastic else "",
            "open-mode=append",
            f"signal=B:USR2@{spec.warning_seconds}",
            "output=job.log",
        ]
        return [
            "# Written by yard. Code shared by all jobs is in yard.sh. To resubmit this job, run `sbatch job.sbatch`.",
            *(f"#SBATCH --{option}" for option in options if option),
        ]

    def settings(self, job: LoadedJob, placement: Placement) -> list[str]:
        """Return the lines that set the variables of slurm.sh."""
        spec, chosen = job.spec, job.launcher
        ranks_per_task = 1 if chosen.tasks is Tasks.RANK else placement.tasks_per_node
        checkpoints = shlex.quote(spec.checkpoint_dir or "")
        # An elastic job must continue when it loses a node.
        step = ["--no-kill", "--kill-on-bad-exit=0"] if chosen.elastic else ["--kill-on-bad-exit=1"]
        if spec.cpus_per_task is not None:
            # srun does not inherit this option from sbatch.
            step.append(f"--cpus-per-task={spec.cpus_per_task}")
        if spec.mpi is not None:
            step.append(f"--mpi={spec.mpi}")
        if spec.container is not None and spec.container.runtime == "pyxis":
            step += pyxis_options(spec.container, placement)
        budget = budget_seconds(spec, placement)
        return [
            f"readonly gpus_per_node={placement.gpus_per_node} tasks_per_node={placement.tasks_per_node}",
            f"readonly ranks_per_task={ranks_per_task} leads={int(chosen.tasks is Tasks.FIRST)}"
            f" over_ssh={int(chosen.over_ssh)}",
            f"readonly retries={spec.retries} chain={spec.chain} checkpoint_dir={checkpoints}",
            f"readonly heartbeat={spec.heartbeat_seconds or 0} warning_seconds={spec.warning_seconds}",
            *([] if spec.stall_minutes is None else [f"readonly stall_minutes={spec.stall_minutes}"]),
            f"readonly step_options=({' '.join(step)})",
            *([] if budget is None else [f"readonly budget_seconds={budget} limit_seconds={spec.seconds}"]),
        ]

    def files(self, job: LoadedJob, placement: Placement) -> Mapping[str, str]:
        """Return a mapping from name to contents for the additional files that this scheduler needs."""
        return {}

    def submit_line(self, jobs_dir: str, name: str, chain: int, script: str = script, after: Sequence[str] = ()) -> str:
        """Return a shell command that unpacks a job's tar archive from stdin, submits the job and prints its number.

        `script` is the job's script, or SUBMIT_SCRIPT. `after` contains Slurm dependencies, such as 'afterok:12'. For a
        chain, the command submits `chain` jobs and prints the first job's number. The command starts few
        processes, because starting one is slow on emulated machines.
        """
        # By default, a job whose dependency failed stays in the queue (sbatch(1), --kill-on-invalid-dep; read
        # 2026-11-22).
        depend = f" --dependency={','.join(after)} --kill-on-invalid-dep=yes" if after else ""
        start = f"bash {script}{depend}" if script == SUBMIT_SCRIPT else f"sbatch --parsable{depend} {script}"
        more = ""
        if chain > 1:
            # Each job starts when the previous job has ended, successfully or not.
            wait = '"--dependency=afterany:${last%%;*}"'
            link = 'ln -sfn "../$name" "../.ids/${last%%;*}"'
            again = f"last=$(sbatch --parsable {wait} job.sbatch); {link}"
            more = f"; last=$id; for _ in $(seq {chain - 1}); do {again}; done"
        return (
            f"{unpack(jobs_dir, name)}; [ -d .ids ] || mkdir -p .ids; "
            f'name={shlex.quote(name)}; cd "$name"; '
            f'id=$({start}) || {{ cd ..; rm -r "$name"; exit 1; }}{more}; {_LINK}'
        )

    def session(
        self, remote: Remote, job: LoadedJob, placement: Placement, command: str | None, *, terminal: bool
    ) -> Session:
        """Return a session on an allocation's first node. The allocation ends with the session.

        The session's step overlaps other steps (srun(1), --overlap), so that `srun` in the session can use all of the
        allocation's resources. --preserve-env keeps the allocation's number of nodes and tasks, as in Slurm's default
        for interactive steps (slurm.conf(5), InteractiveStepOptions; read 2026-11-22).
        """
        options = [line.removeprefix("#SBATCH ") for line in self.header(job, placement) if line.startswith("#SBATCH")]
        allocation = [option for option in options if option.partition("=")[0] in _ALLOCATION]
        step = ["--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--overlap", "--preserve-env"]
        if terminal:
            step.append("--pty")
        if placement.gpus_per_node:
            step.append(f"--gpus-per-node={placement.gpus_per_node}")
        line = f"salloc {shlex.join(allocation)} srun {' '.join(step)} {shell_line(command)}"
        return Session(host=None, line=line if terminal else until_disconnected(line), job_name=job.spec.name)

    def session_node(self, remote: Remote, session: Session) -> str | None:
        """Return a session's first node, or None if the session is waiting for nodes."""
        name = shlex.quote(session.job_name)
        list_line = f'scontrol show hostnames "$(squeue -h -u "$USER" -t RUNNING -n {name} -o %N)"'
        return next(iter(remote.run(list_line).split()), None)

    def recent(self, remote: Remote, days: int) -> list[Job]:
        """Return the jobs from the last `days` days, newest first."""
        # slurmctld knows recent jobs, even without accounting. The accounting database also knows older jobs.
        command = (
            f"scontrol -o show jobs; echo {_ACCOUNTING}; "
            f"sacct -a -X -n -P -S now-{days}days -o {SACCT_FIELDS} 2>/dev/null || true"
        )
        now, _, before = remote.run_with_notices(command).partition(_ACCOUNTING)
        lists = [parse_sacct(before), parse_scontrol(now)]
        if remote.stack.cluster.users:
            # A separate command, because a job's name could also imitate a separator.
            owners = remote.run(
                "squeue -h -a -t all -o '%A|%u'; "
                f"sacct -a -X -n -P -S now-{days}days -o JobIDRaw,User 2>/dev/null || true"
            )
            if imitated := sorted({number for jobs in lists for number in repeated(jobs)}):
                numbers = ", ".join(map(str, imitated[:_SHOWN]))
                warn(f"jobs that are not shown, because the name of a different job imitates them: {numbers}")
            lists = [confirmed(jobs, owners) for jobs in lists]
        jobs = {job.id: job for listed in lists for job in listed}
        return sorted(jobs.values(), key=lambda job: job.id, reverse=True)

    def find(self, remote: Remote, job: int) -> Job | None:
        """Return a job, or None if neither slurmctld nor the accounting knows it."""
        command = f"scontrol -o show job {job} 2>/dev/null || sacct -X -n -P -j {job} -o {SACCT_FIELDS}"
        found = parse_one(remote.run(command), job)
        if found is None or not remote.stack.cluster.users:
            return found
        # A job's name can imitate the fields and lines in this output, so the owner is also listed without the name.
        listed = f"squeue -h -t all -j {job} -o %u 2>/dev/null || sacct -X -n -P -j {job} -o user"
        if {found.user} != set(remote.run(listed).split()):
            raise JobError(f"the name of job {job} imitates Slurm's output, so yard does not act on this job")
        return found

    def cancel(self, remote: Remote, jobs: Sequence[Job]) -> None:
        """Cancel jobs that have not ended."""
        remote.run("scancel " + " ".join(str(job.id) for job in jobs))

    def resume(self, remote: Remote, job: Job) -> int:
        """Submit a job's script again, and return the new number. Raises RemoteError if yard did not submit the job."""
        # A user's Slurm script can change its working directory, so the link is more reliable.
        link = shlex.quote(f"{remote.stack.cluster.jobs_of(job.user)}/.ids/{job.id}")
        refusal = f"job {job.id} was not submitted with `yard submit`, so yard has no copy of its script"
        start = f"if [ -e {SUBMIT_SCRIPT} ]; then bash {SUBMIT_SCRIPT}; else sbatch --parsable {self.script}; fi"
        printed = remote.run(
            f"set -eu; if [ -d {link} ]; then cd -P {link}; else cd {shlex.quote(job.run_dir)}; fi; "
            f"[ -e {SUBMIT_SCRIPT} ] || [ -e {self.script} ] || {{ echo {shlex.quote(refusal)} >&2; exit 1; }}; "
            f"date '+%s resume' >>events; rm -f .used-*; id=$({start}); name=${{PWD##*/}}; {_LINK}"
        )
        return submitted_job(printed)

    def nodes(self, remote: Remote) -> dict[str, tuple[str, str]]:
        """Return a mapping from node name to state and reason. The state ends with '*' if the node does not respond.

        Slurm 24.11.5 still prints the old reason of a node that has returned to service (seen 2026-11-24).
        """
        lines = remote.run_with_notices("sinfo -a -h -N -o '%N|%T|%E'").splitlines()
        rows = (line.split("|", 2) for line in lines if line.count("|") >= 2)  # noqa: PLR2004  (two separators)
        return {
            name: (state, "" if reason == "none" or is_in_service(state) else reason) for name, state, reason in rows
        }

    def authors(self, remote: Remote) -> dict[str, str]:
        """Return a mapping from node to the user and time of its reason, unless Slurm has set it."""
        return parse_authors(remote.run("sinfo -a -h -N -o '%N|%u|%H'"))


def clock(seconds: int) -> str:
    """Return a duration in Slurm's format, HH:MM:SS or D-HH:MM:SS."""
    days, rest = divmod(seconds, 86400)
    time = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{time}" if days else time


class Runner:
    """Runs jobs on a cluster without a scheduler. `Slurm` describes the attributes and methods."""

    script = "job.sh"
    shell = "direct.sh"
    source_lines = ('source "$RUN_DIR/yard.sh"',)

    def problems(self, job: LoadedJob) -> Iterator[Problem]:
        spec = job.spec
        if job.launcher.needs_slurm:
            rule = f"{spec.launcher} needs Slurm, which this cluster does not run"
            yield Problem(path="launcher", rule=rule, fix="use launcher deepspeed-pdsh or deepspeed-no-ssh")
        if spec.runtime == "pyxis":
            rule = "pyxis is a Slurm plugin, and this cluster does not run Slurm"
            yield Problem(path="container.runtime", rule=rule, fix="use docker or enroot")
        for key in ("cpus_per_task", "memory_per_node", "mpi", "after", "account", "readable_by", "groups", "max_usd"):
            if getattr(spec, key):
                yield Problem(path=key, rule="needs a scheduler, which this cluster does not run", fix="remove it")
        if spec.array is not None and "%" in spec.array:
            rule = "without a scheduler, free nodes alone limit how many jobs run at the same time"
            yield Problem(path="array", rule=rule, fix=f"remove '%{spec.array.partition('%')[2]}'")
        if spec.chain > 1:
            rule = "without a scheduler, a job with checkpoints restarts at its time limit and needs no chain"
            yield Problem(path="chain", rule=rule, fix="remove it")

    def header(self, job: LoadedJob, placement: Placement) -> list[str]:
        return ["# Written by yard. Code shared by all jobs is in yard.sh. runner/ starts the tasks."]

    def settings(self, job: LoadedJob, placement: Placement) -> list[str]:
        node, gpus = placement.hosts[0], placement.gpus_per_node
        if not drives_gpus(node) or gpus == node.gpus:
            return []
        return [f"export CUDA_VISIBLE_DEVICES={','.join(map(str, range(gpus)))}"]

    def files(self, job: LoadedJob, placement: Placement) -> Mapping[str, str]:
        runner = {f"runner/{path.name}": path.read_text() for path in sorted((_HERE / "runner").glob("*.py"))}
        return {"job.json": render_request(job, placement), **runner}

    def submit_line(self, jobs_dir: str, name: str, chain: int, script: str = script, after: Sequence[str] = ()) -> str:
        folder = shlex.quote(f"{jobs_dir}/{name}")
        return f"{unpack(jobs_dir, name)}; cd {folder}; python3 -m runner submit {folder}"

    def session(
        self, remote: Remote, job: LoadedJob, placement: Placement, command: str | None, *, terminal: bool
    ) -> Session:
        # The session's node is not reserved.
        if placement.nodes > 1:
            raise JobError("without a scheduler, a session uses one node; omit --nodes, or use `yard submit`")
        busy = self._query(remote, "nodes")
        node = next((host.name for host in placement.hosts if host.name not in busy), None)
        if node is None:
            raise JobError(
                f"all nodes in group '{placement.groups[0]}' run jobs; wait until a job has ended, or log in with "
                f"`yard ssh {placement.hosts[0].name}`"
            )
        line = shell_line(command, *self.settings(job, placement))
        return Session(host=node, line=line if terminal else until_disconnected(line), node=node)

    def session_node(self, remote: Remote, session: Session) -> str | None:
        return session.node

    def recent(self, remote: Remote, days: int) -> list[Job]:
        return [Job(**row) for row in self._query(remote, "jobs", str(days))]

    def find(self, remote: Remote, job: int) -> Job | None:
        return next((Job(**row) for row in self._query(remote, "job", str(job))), None)

    def cancel(self, remote: Remote, jobs: Sequence[Job]) -> None:
        self._query(remote, "cancel", *(str(job.id) for job in jobs))

    def resume(self, remote: Remote, job: Job) -> int:
        folder = shlex.quote(job.run_dir)
        remote.run(f"cd {folder} && python3 -m runner resume {folder}")
        return job.id

    def nodes(self, remote: Remote) -> dict[str, tuple[str, str]]:
        # A node without a job counts as idle, even if it does not respond.
        busy = self._query(remote, "nodes")
        return {node.name: ("allocated" if node.name in busy else "idle", "") for node in remote.stack.cluster.nodes}

    def authors(self, remote: Remote) -> dict[str, str]:
        return {}

    def _query(self, remote: Remote, *words: str) -> Any:
        folder = shlex.quote(f"{remote.stack.cluster.shared_path}/jobs")
        return json.loads(remote.run(f"python3 - {folder} {' '.join(words)}", stdin=(_HERE / "query.py").read_bytes()))


def render_request(job: LoadedJob, placement: Placement) -> str:
    """Return the contents of job.json. The keys are the fields of JobRequest in runner/job.py."""
    spec, chosen = job.spec, job.launcher
    docker = spec.runtime == "docker"
    request = {
        "name": spec.name,
        "group": placement.groups[0],
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
        "stall_minutes": spec.stall_minutes,
        "checkpoint_dir": spec.checkpoint_dir or "",
        "ssh": _SSH,
    }
    return json.dumps(request, indent=1) + "\n"


def scheduler_of(name: str) -> Slurm | Runner:
    """Return the scheduler for the value of `scheduler` in a cluster's outputs."""
    return Runner() if name == "none" else Slurm()
