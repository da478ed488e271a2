"""Checks and renders a job, and submits or prints it. yard/run/request.py prepares the jobs of `yard submit`."""

from __future__ import annotations

import io
import json
import os
import re
import secrets
import shlex
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, JobFileError, Problem, RemoteError
from trainyard.outputs import Cluster
from yard.environments.definition import Definition
from yard.job.launcher import Source, Tasks
from yard.job.loader import (
    LoadedJob,
)
from yard.job.placement import Placement, budget_seconds, drives_gpus, limited, place
from yard.job.spec import (
    SHARED_SCRIPT,
    JobSpec,
    parse_array,
)
from yard.run.fair_use import held, refusal
from yard.run.jobs import read_job
from yard.run.queue import submitted_job
from yard.run.schedulers import scheduler_of
from yard.run.script import CODE, SECRETS_FILE, render_files, render_record, secrets_script
from yard.show import counted, duration, payload, say, say_json, warn
from yard.stack.remote import Remote
from yard.tree.files import Tree, add, collect, digest
from yard.tree.snapshot import Snapshot, take_snapshot

RECORD = "record.json"
_SUBMIT_SECONDS = 90
_SECONDS_PER_MIB = 5
_MIB = 1024 * 1024
_PMI2 = re.compile(r"--mpi[= ]pmi2\b")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked job. `files` maps the names of the job's files to their contents.

    `file` is the job's name in messages, and `script` is the name of its main file. `tree` is the directory to upload,
    and `working_tree` is the directory whose git state is recorded. `starts` describes the processes that the job
    starts. `after` contains the numbers of the jobs that must complete first. `at_once` is the maximum number of an
    array's jobs that run at the same time, or None if there is no limit. `group` (names separated by commas), `nodes`
    and `seconds` (the time limit of each start) are empty for a Slurm script, which specifies its own size.
    `usd_per_hour` is the list price of the nodes, or None if it is unknown. `cost_limit` describes the effect of
    `max_usd`, or is empty. `record` contains what `yard report` and `yard diff` need (`render_record`).
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
    usd_per_hour: float | None = None
    max_usd: float | None = None
    cost_limit: str = ""
    readable_by: str = ""
    environment: Definition | None = None
    packages: Sequence[str] = ()
    record: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A submitted job: its number, run folder and recorded working tree."""

    job: int
    run_dir: str
    snapshot: Snapshot | None


def prepare(loaded: LoadedJob, cluster: Cluster) -> Prepared:
    """Check whether a job fits the cluster, and render its files. Raises JobFileError if it does not fit."""
    scheduler, spec = scheduler_of(cluster.scheduler), loaded.spec
    problems = list(scheduler.problems(loaded))
    if spec.readable_by is not None and not cluster.users:
        problems.append(Problem(path="readable_by", rule="all users of this cluster share an account", fix="remove it"))
    if problems:
        raise JobFileError(loaded.file, problems)
    placement = place(loaded, cluster)
    asked, loaded = spec.seconds, limited(loaded, cluster, placement)
    spec = loaded.spec
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
        group=",".join(placement.groups),
        nodes=placement.nodes,
        seconds=spec.seconds,
        usd_per_hour=placement.usd_per_hour,
        max_usd=spec.max_usd,
        cost_limit=_cost_limit(spec, placement, asked),
        readable_by=spec.readable_by or "",
        environment=environment_on(loaded, placement),
        packages=loaded.packages,
        record=render_record(loaded, placement),
    )


def prepare_all(loaded: LoadedJob, cluster: Cluster) -> list[Prepared]:
    """Prepare a job or, if it is an array, each of its jobs. Raises JobFileError if a job does not fit."""
    array = parse_array(loaded.spec.array or "")
    if array is None:
        found = [prepare(loaded, cluster)]
    else:
        indices, at_once = array
        named = ((index, replace(loaded.spec, name=f"{loaded.spec.name}-{index}")) for index in indices)
        elements = (prepare(replace(loaded, spec=spec, element=index), cluster) for index, spec in named)
        found = [replace(prepared, at_once=at_once) for prepared in elements]
    warn_about_pmi2(found[0].files.values())
    return found


def environment_on(loaded: LoadedJob, placement: Placement) -> Definition | None:
    """Return the job's Python environment, or None if it uses the nodes' own Python."""
    chosen = loaded.spec.environment
    if chosen is None or (chosen.gpus_only and not any(map(drives_gpus, placement.hosts))):
        return None
    return loaded.environment


def _cost_limit(spec: JobSpec, placement: Placement, asked: int) -> str:
    """Return a sentence about `max_usd`, or "" without it. `asked` is the job's own time limit in seconds."""
    budget = budget_seconds(spec, placement)
    if budget is None or placement.usd_per_hour is None:
        return ""
    cost = f"costs at most ${placement.usd_per_hour * spec.seconds / 3600:.2f}"
    price = f"at the list price of ${placement.usd_per_hour:.2f} per hour"
    why = f"max_usd ({spec.max_usd:g}) sets the time limit to" if spec.seconds < asked else "the time limit is"
    return f"{why} {duration(spec.seconds)}, which {cost} {price}; all starts together may run for {duration(budget)}"


def _starts(loaded: LoadedJob, placement: Placement) -> str:
    spec, ranks = loaded.spec, counted(placement.tasks_per_node, "rank")
    nodes = "1 node" if placement.nodes == 1 else f"each of {placement.nodes} nodes"
    if spec.source is not Source.RUN:
        return f"{spec.launcher} starts {spec.script or spec.workload} on {nodes}, {ranks} per node"
    if loaded.launcher.tasks is Tasks.NODE:
        return f"the command starts once on {nodes}"
    return f"the command starts once for each rank on {nodes}, {ranks} per node"


def warn_about_pmi2(texts: Iterable[str]) -> None:
    """Print a warning if a script starts ranks with PMI2, because ranks do not fail if their MPI library lacks PMI2.

    Source: open-mpi/ompi issue 13523 (Open MPI 5.0.3), read 2026-11-24.
    """
    if any(map(_PMI2.search, texts)):
        warn(
            "yard: with --mpi=pmi2, Open MPI 5 and other MPI libraries without PMI2 start each process as a job of one "
            "rank, with exit code 0. Fix: use pmix instead of pmi2, or check the number of ranks in the program"
        )


def show_files(jobs: Sequence[Prepared], as_json: bool, estimated: Mapping[str, Any], notes: Iterable[str]) -> None:
    """Print `notes` and the first job's files. If `as_json` is set, print the files and `estimated` instead."""
    prepared = jobs[0]
    files, tree = dict(prepared.files), prepared.tree
    if as_json:
        code = None if tree is None else {"from": str(tree.folder.resolve()), "files": tree.names}
        facts = {"dry_run": True, "name": prepared.name, "jobs": len(jobs), "starts": prepared.starts}
        say_json({**facts, "files": files, "code": code, **estimated})
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
    """Submit an array's jobs and print their numbers. Jobs that were submitted before an error stay in the queue."""
    numbers: list[int] = []
    at_once = jobs[0].at_once
    for at, prepared in enumerate(jobs):
        # Later jobs wait until earlier jobs have ended.
        ended = numbers[at - at_once] if at_once is not None and at >= at_once else None
        numbers.append(send(remote, prepared, as_json, ended=ended).job)


def send(remote: Remote, prepared: Prepared, as_json: bool, *, ended: int | None = None) -> Submitted:
    """Submit a job and print its number. `ended` and the errors are the same as for `submit`."""
    submitted = submit(remote, prepared, ended=ended)
    commit = submitted.snapshot.title if submitted.snapshot else None
    for notice in remote.notices:
        warn(f"yard: {notice}")
    if as_json:
        facts = {"id": submitted.job, "name": prepared.name, "run_dir": submitted.run_dir, "commit": commit}
        say_json({**facts, "left_out": prepared.tree.left_out if prepared.tree else ()})
        return submitted
    say(f"job {submitted.job} ({prepared.name}) submitted; its folder is {submitted.run_dir}")
    if prepared.cost_limit:
        say(prepared.cost_limit)
    if (tree := prepared.tree) is not None:
        say(f"{_sent(tree)}{f', commit {commit}' if commit else ''}; {prepared.starts}")
        for name in tree.left_out:
            why = "it looks like a secret; use `secrets` in a job file for its values"
            warn(f"yard: {name} was not sent, because {why}")
    if remote.stack.cluster.users:
        with suppress(RemoteError):  # the job is submitted, so the command must not fail
            for job, limit in held(remote, [submitted.job]).items():
                warn(f"yard: job {job} is queued: {limit}")
    return submitted


def _sent(tree: Tree) -> str:
    size = f"{tree.size / _MIB:.1f} MiB" if tree.size >= _MIB else f"{tree.size / 1024:.1f} KiB"
    return f"{counted(len(tree.names), 'file')} of {tree.folder.resolve()} ({size})"


def submit(remote: Remote, prepared: Prepared, *, ended: int | None = None) -> Submitted:
    """Submit a job. If `ended` is a job number, the new job starts only after that job has ended.

    Raises JobFileError if a secret is not set, JobError if the job must wait for a job that cannot complete, and
    RemoteError if the scheduler rejects the job.
    """
    files, tree = dict(prepared.files), prepared.tree
    if prepared.secrets:
        files[SECRETS_FILE] = secrets_script(prepared.file, prepared.secrets, os.environ)
    snapshot = take_snapshot(prepared.working_tree)
    if snapshot is not None:
        files |= snapshot.files()
    code = "" if tree is None else digest(tree)
    record = {"name": prepared.name, **prepared.record, "code": code, "submitted": round(time.time())}
    files[RECORD] = json.dumps(record) + "\n"
    after = [f"afterok:{number}" for number in unfinished(remote, prepared.after)]
    after += [] if ended is None else [f"afterany:{ended}"]
    jobs_dir = remote.stack.jobs_path
    # The names of run folders are unique. The folders of jobs with the same name are sorted by time.
    name = f"{prepared.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    scheduler = scheduler_of(remote.stack.cluster.scheduler)
    line = scheduler.submit_line(jobs_dir, name, prepared.chain, prepared.script, after)
    if prepared.readable_by:
        line = _share(line, prepared.readable_by, f"{jobs_dir}/{name}")
    seconds = _SUBMIT_SECONDS + (tree.size // _MIB * _SECONDS_PER_MIB if tree is not None else 0)
    try:
        printed = remote.run_with_notices(line, stdin=pack(name, files, tree), seconds=seconds)
    except RemoteError as error:
        if "sbatch: error" not in str(error):
            raise
        if limit := refusal(remote, remote.stack.user, str(error)):
            fix = "request less with --nodes, --gpus-per-node or --time"
            raise RemoteError(f"Slurm refused {prepared.file}, because {limit}. Fix: {fix}") from error
        groups = ", ".join(dict.fromkeys(node.group for node in remote.stack.cluster.nodes))
        fix = f"correct the job, or override its options, for example with --nodes, --time or --group ({groups})"
        raise RemoteError(f"Slurm refused {prepared.file}: {error}. Fix: {fix}") from error
    return Submitted(job=submitted_job(printed), run_dir=f"{jobs_dir}/{name}", snapshot=snapshot)


def _share(line: str, group: str, folder: str) -> str:
    """Return a shell command that runs `line` and lets a group read the job's log and other files.

    The job's scripts and secrets have mode 0600, and its code has mode 0700.
    """
    rule = f"{group} is not one of your groups. Fix: use another group in `readable_by`"
    check = f'case " $(id -nG) " in *" {group} "*) ;; *) echo {shlex.quote(rule)} >&2; exit 1 ;; esac'
    return f"{check}; {line}; chgrp {group} {shlex.quote(folder)}; chmod 0750 {shlex.quote(folder)}"


def pack(folder: str, files: Mapping[str, str | Path], tree: Tree | None = None) -> bytes:
    """Return a tar archive of `folder` with `files`, which only their owner can read, and with `tree` in `code`.

    `files` maps names to contents, or to the files that have the contents.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, text in sorted(files.items()):
            content = text.encode() if isinstance(text, str) else text.read_bytes()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
        if tree is not None:
            add(archive, tree, f"{folder}/{CODE}")
    return buffer.getvalue()


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
