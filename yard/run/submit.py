"""Command `yard submit`: checks a job, renders its files, and submits or prints them."""

from __future__ import annotations

import io
import os
import re
import secrets
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, JobFileError, RemoteError
from trainyard.outputs import Cluster
from yard.environments.definition import Definition
from yard.job.launcher import Source, Tasks
from yard.job.loader import LoadedJob
from yard.job.placement import Placement, drives_gpus, place
from yard.job.rules import SHARED_SCRIPT
from yard.job.spec import parse_array
from yard.run.jobs import read_job
from yard.run.queue import submitted_job
from yard.run.schedulers import scheduler_of
from yard.run.script import CODE, SECRETS_FILE, render_files, secrets_script
from yard.show import duration, payload, say, say_json, warn
from yard.stack.remote import Remote
from yard.tree.files import Tree, add, collect
from yard.tree.snapshot import Snapshot, take_snapshot

_SUBMIT_SECONDS = 90
_SECONDS_PER_MIB = 5
_MIB = 1024 * 1024
_PMI2 = re.compile(r"--mpi[= ]pmi2\b")
_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked job and the contents of its files by name.

    `file` is the job's name in messages, and `script` is the name of its main file. `tree` is the directory to upload.
    `starts` describes the processes that the job starts. `working_tree` is the directory whose git state is recorded.
    `after` contains the numbers of the jobs that must complete first, and `at_once` is the maximum number of jobs in an
    array that run at the same time, or None for no limit. `group`, `nodes` and `seconds` (the time limit of each start)
    are empty for a Slurm script, which specifies its own size. `environment` is the job's Python environment.
    """

    name: str
    file: str
    script: str
    files: Mapping[str, str]
    tree: Tree | None = None
    starts: str = ""
    working_tree: Path
    secrets: Sequence[str] = ()
    chain: int = 1
    after: Sequence[int] = ()
    at_once: int | None = None
    group: str = ""
    nodes: int = 0
    seconds: int = 0
    environment: Definition | None = None


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A submitted job: its number, run folder and recorded working tree."""

    job: int
    run_dir: str
    snapshot: Snapshot | None


def prepare(loaded: LoadedJob, cluster: Cluster) -> Prepared:
    """Check the job against the cluster and render its files. Raises JobFileError if the job does not fit."""
    scheduler, spec = scheduler_of(cluster.scheduler), loaded.spec
    if problems := list(scheduler.problems(loaded)):
        raise JobFileError(loaded.file, problems)
    placement = place(loaded, cluster)
    own = [spec.script] if spec.script is not None and spec.workdir is None else []
    return Prepared(
        name=spec.name,
        file=loaded.file,
        script=scheduler.script,
        files=render_files(loaded, placement),
        tree=collect(loaded.file, loaded.code, own) if loaded.code is not None else None,
        starts=_starts(loaded, placement),
        working_tree=loaded.code or Path.cwd(),
        secrets=spec.secrets,
        chain=spec.chain,
        after=spec.after,
        group=placement.group,
        nodes=placement.nodes,
        seconds=spec.seconds,
        environment=environment_on(loaded, placement),
    )


def prepare_all(loaded: LoadedJob, cluster: Cluster) -> list[Prepared]:
    """Return the prepared jobs of an array, or one job. Raises JobFileError if the job does not fit."""
    array = parse_array(loaded.spec.array) if loaded.spec.array is not None else None
    if array is None:
        found = [prepare(loaded, cluster)]
    else:
        named = ((index, replace(loaded.spec, name=f"{loaded.spec.name}-{index}")) for index in array.indices)
        elements = (prepare(replace(loaded, spec=spec, element=index), cluster) for index, spec in named)
        found = [replace(prepared, at_once=array.at_once) for prepared in elements]
    warn_about_pmi2(found[0].files.values())
    return found


def environment_on(loaded: LoadedJob, placement: Placement) -> Definition | None:
    """Return the job's Python environment, or None if it uses the nodes' own Python."""
    chosen = loaded.spec.environment
    if chosen is None or (chosen.gpus_only and not any(map(drives_gpus, placement.hosts))):
        return None
    return loaded.environment


def _starts(loaded: LoadedJob, placement: Placement) -> str:
    spec, ranks = loaded.spec, placement.tasks_per_node
    nodes = "1 node" if placement.nodes == 1 else f"each of {placement.nodes} nodes"
    if spec.source is not Source.RUN:
        what = spec.script or spec.workload
        return f"{spec.launcher} starts {what} on {nodes}, {ranks} rank{'s' if ranks > 1 else ''} per node"
    if loaded.launcher.tasks is Tasks.NODE:
        return f"the command starts once on {nodes}"
    return f"the command starts once for each rank on {nodes}, {ranks} rank{'s' if ranks > 1 else ''} per node"


def warn_about_pmi2(texts: Iterable[str]) -> None:
    """Print a warning if a script starts ranks with PMI2, because the ranks do not fail if their MPI lacks PMI2.

    Source: open-mpi/ompi issue 13523 (Open MPI 5.0.3), read 2026-11-24.
    """
    if any(map(_PMI2.search, texts)):
        warn(
            "yard: with --mpi=pmi2, Open MPI 5 and other MPI libraries without PMI2 start each process as a job of one "
            "rank, with exit code 0. Fix: use pmix instead of pmi2, or check the number of ranks in the program"
        )


def show_files(jobs: Sequence[Prepared], as_json: bool, estimated: Mapping[str, Any], notes: Iterable[str]) -> None:
    """Print `notes`, the first job's other files and, last, its script. Without `as_json`, only the line count is
    printed for long files. With `as_json`, the facts in `estimated` are added instead of the notes.
    """
    prepared = jobs[0]
    files, tree = dict(prepared.files), prepared.tree
    if as_json:
        sent = {} if tree is None else {"code": {"from": str(tree.folder.resolve()), "files": tree.names}}
        facts = {"dry_run": True, "name": prepared.name, "jobs": len(jobs), "starts": prepared.starts}
        say_json({**facts, "files": files, **sent, **estimated})
        return
    if prepared.starts:
        payload(f"# {prepared.starts}\n")
    if len(jobs) > 1:
        payload(f"# an array of {len(jobs)} such jobs, {prepared.name} to {jobs[-1].name}\n")
    for note in notes:
        payload(f"# {note}\n")
    script = files.pop(prepared.script)
    for name, text in files.items():
        long = name == SHARED_SCRIPT or name.endswith(".py")
        shown = f"({len(text.splitlines())} lines; --json prints them)\n" if long else text
        payload(f"# --- {name}, in the same folder\n{shown}")
    if tree is not None:
        payload(f"# --- {CODE}/: {_sent(tree)}; --json lists them\n")
    payload(f"# --- {prepared.script}\n{script}")


def send_all(remote: Remote, jobs: Sequence[Prepared], as_json: bool) -> None:
    """Submit the jobs of an array and print their numbers. With `at_once`, later jobs wait until earlier jobs end.

    Raises the same errors as `submit`. The jobs that were submitted before the error stay in the queue.
    """
    numbers: list[int] = []
    at_once = jobs[0].at_once
    for at, prepared in enumerate(jobs):
        ended = numbers[at - at_once] if at_once is not None and at >= at_once else None
        numbers.append(send(remote, prepared, as_json, ended=ended).job)


def send(remote: Remote, prepared: Prepared, as_json: bool, *, ended: int | None = None) -> Submitted:
    """Submit the job and print its number. `ended` and the errors are the same as for `submit`."""
    submitted = submit(remote, prepared, ended=ended)
    commit = submitted.snapshot.title if submitted.snapshot else None
    if as_json:
        facts = {"id": submitted.job, "name": prepared.name, "run_dir": submitted.run_dir, "commit": commit}
        say_json({**facts, "left_out": prepared.tree.left_out if prepared.tree else ()})
        return submitted
    say(f"job {submitted.job} ({prepared.name}) submitted; its folder is {submitted.run_dir}")
    if (tree := prepared.tree) is not None:
        say(f"{_sent(tree)}{f', commit {commit}' if commit else ''}; {prepared.starts}")
        for name in tree.left_out:
            warn(
                f"yard: {name} was not sent, because it looks like a secret; use `secrets` in a job file for its values"
            )
    return submitted


def _sent(tree: Tree) -> str:
    size = f"{tree.size / _MIB:.1f} MiB" if tree.size >= _MIB else f"{tree.size / 1024:.1f} KiB"
    return f"{len(tree.names)} file{'' if len(tree.names) == 1 else 's'} of {tree.folder.resolve()} ({size})"


def submit(remote: Remote, prepared: Prepared, *, ended: int | None = None) -> Submitted:
    """Submit the job. With `ended`, the job starts only after the job with this number has ended.

    Raises JobFileError if a secret is not set, JobError if the job must wait for a job that cannot complete, and
    RemoteError if the scheduler rejects the job.
    """
    files, tree = dict(prepared.files), prepared.tree
    if prepared.secrets:
        files[SECRETS_FILE] = secrets_script(prepared.file, prepared.secrets, os.environ)
    snapshot = take_snapshot(prepared.working_tree)
    if snapshot is not None:
        files |= snapshot.files()
    after = [f"afterok:{number}" for number in unfinished(remote, prepared.after)]
    after += [] if ended is None else [f"afterany:{ended}"]
    jobs_dir = f"{remote.stack.cluster.shared_path}/jobs"
    name = run_dir_name(prepared.name, datetime.now(UTC), secrets.token_hex(2))
    scheduler = scheduler_of(remote.stack.cluster.scheduler)
    line = scheduler.submit_line(jobs_dir, name, prepared.chain, prepared.script, after)
    seconds = _SUBMIT_SECONDS + (tree.size // _MIB * _SECONDS_PER_MIB if tree is not None else 0)
    try:
        printed = remote.run(line, stdin=pack(name, files, tree), seconds=seconds)
    except RemoteError as error:
        if "sbatch: error" not in str(error):
            raise
        groups = ", ".join(dict.fromkeys(node.group for node in remote.stack.cluster.nodes))
        fix = f"correct the job, or override its options, for example with --nodes, --time or --group ({groups})"
        raise RemoteError(f"Slurm refused {prepared.file}: {error}. Fix: {fix}") from error
    return Submitted(job=submitted_job(printed), run_dir=f"{jobs_dir}/{name}", snapshot=snapshot)


def run_dir_name(name: str, now: datetime, token: str) -> str:
    """Return a unique name for a run folder. The names of a job's run folders sort by time."""
    return f"{name}-{now:%Y%m%d-%H%M%S}-{token}"


def pack(folder: str, files: Mapping[str, str], tree: Tree | None = None) -> bytes:
    """Return a tar archive that contains `files` in a folder named `folder`, and the tree in the subfolder `code`.

    Only the owner can read the files. Raises SyncError if a file in the tree cannot be read.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, text in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
        if tree is not None:
            add(archive, tree, f"{folder}/{CODE}")
    return buffer.getvalue()


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A planned cluster. `file` is the stack file, and `reason` is why the stack has no outputs.

    `costs` describes the list prices of the cluster, and `node_usd` is the list price of one node in each group in
    dollars per hour, or None if it is unknown.
    """

    file: str
    reason: str
    cluster: Cluster
    costs: Sequence[str]
    node_usd: Mapping[str, float | None]

    @property
    def notice(self) -> str:
        """Message that a plan was used instead of a cluster."""
        return f"dry run with the plan of {self.file}, without a cluster"


def estimate(rehearsal: Rehearsal, jobs: Sequence[Prepared]) -> dict[str, Any]:
    """Return the estimate in the format that `--json` prints. Unknown values are None."""
    job = jobs[0]
    price = rehearsal.node_usd.get(job.group)
    hourly = None if price is None else round(price * job.nodes, 2)
    limit = None if hourly is None else round(hourly * job.seconds / _HOUR * len(jobs), 2)
    return {
        "source": "plan",
        "file": rehearsal.file,
        "group": job.group or None,
        "nodes": job.nodes or None,
        "cluster_usd_per_hour": rehearsal.cluster.usd_per_hour,
        "job_usd_per_hour": hourly,
        "limit_s": job.seconds or None,
        "usd_at_limit": limit,
        # No run of a job on a cloud is recorded.
        "time_s": None,
    }


def estimate_lines(rehearsal: Rehearsal, jobs: Sequence[Prepared]) -> Iterator[str]:
    """Yield the estimate as sentences."""
    job, found = jobs[0], estimate(rehearsal, jobs)
    if not job.nodes:
        yield "job: its size is in the script, so yard does not check whether it fits; Slurm checks it"
    else:
        yield from _job_lines(job, found, len(jobs))
    yield from (f"cluster: {line}" for line in rehearsal.costs)
    if job.environment is None:
        yield "environment: Python of the nodes or the container; images of clouds have no PyTorch (use --env torch)"
    yield rehearsal.notice


def _job_lines(job: Prepared, found: Mapping[str, Any], count: int) -> Iterator[str]:
    each = f"each of {count} jobs" if count > 1 else "job"
    hourly = "unknown" if found["job_usd_per_hour"] is None else f"${found['job_usd_per_hour']:.2f}"
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    yield f"{each}: fits on {nodes} of group {job.group}; list price per hour: {hourly}"
    cost = "" if found["usd_at_limit"] is None else f", which costs at most ${found['usd_at_limit']:.2f}"
    limit = duration(job.seconds)
    yield f"time: unknown, because no run on these machines is recorded; each start ends after {limit}{cost}"


def unfinished(remote: Remote, jobs: Iterable[int]) -> tuple[int, ...]:
    """Return the jobs that have not ended. Raises JobError if a job does not exist or has failed."""
    waiting = []
    for number in dict.fromkeys(jobs):
        job = read_job(remote, number)
        if not job.ended:
            waiting.append(number)
        elif job.state != "COMPLETED":
            fix = f"run `yard resume {number}` and wait for the new job, or omit --after {number}"
            raise JobError(f"job {number} is {job.state}, so a job after it would never start. Fix: {fix}")
    return tuple(waiting)
