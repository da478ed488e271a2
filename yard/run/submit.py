"""Reads the arguments of `yard submit`, checks and renders its job, and submits or prints it.

The job is a recipe, a job file, a Python file, a Slurm script or a shell command. A user's Slurm script is submitted
unchanged, with options on sbatch's command line that override the script's options. Its run folder contains
SUBMIT_SCRIPT and the folder `code`. The script is in `code`, and the job starts there.
"""

from __future__ import annotations

import ast
import io
import os
import re
import secrets
import shlex
import tarfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, JobFileError, Problem, RemoteError
from trainyard.outputs import Cluster
from yard.environments.definition import NO_ENVIRONMENT, Definition, is_file, read_environment
from yard.environments.packages import is_path
from yard.job.launcher import Source, Tasks
from yard.job.loader import (
    LoadedJob,
    check_job,
    definition_for,
    environment_of,
    find,
    holds_home,
    load_job,
    packages_for,
    recipe_names,
)
from yard.job.placement import Placement, budget_seconds, drives_gpus, limited, place, refuse_unready
from yard.job.spec import (
    ENVIRONMENT_FILE,
    RULES,
    SHARED_SCRIPT,
    JobSpec,
    environment,
    parse_array,
    parse_seconds,
    refuse,
    under,
)
from yard.run.fair_use import held, refusal
from yard.run.jobs import read_job
from yard.run.queue import submitted_job
from yard.run.schedulers import SUBMIT_SCRIPT, clock, scheduler_of
from yard.run.script import CODE, SECRETS_FILE, render_files, secrets_script
from yard.show import counted, duration, payload, say, say_json, warn
from yard.stack.remote import Remote
from yard.tree.files import Tree, add, collect, one_file
from yard.tree.snapshot import Snapshot, take_snapshot

_SUBMIT_SECONDS = 90
_SECONDS_PER_MIB = 5
_MIB = 1024 * 1024
_PMI2 = re.compile(r"--mpi[= ]pmi2\b")
COMMAND_LINE = "command line"
"""The name that messages use for a shell command."""
_DIRECTIVE = re.compile(r"(?m)^#SBATCH\s")
OPTIONS = {
    "name": "job-name",
    "nodes": "nodes",
    "gpus_per_node": "gpus-per-node",
    "group": "partition",
    "account": "account",
    "time": "time",
    "array": "array",
}
"""Mapping from the keys of a job file to sbatch's options."""
# By default, a job inherits sbatch's environment variables (sbatch(1), --export, read 2026-11-23).
_ACTIVATE = (
    f"if [[ -e {ENVIRONMENT_FILE} ]]; then",
    f"  VIRTUAL_ENV=$(<{ENVIRONMENT_FILE})",
    "  export VIRTUAL_ENV PATH=$VIRTUAL_ENV/bin:$PATH",
    "fi",
)
_JOB_NAME_OPTION = re.compile(r"(?m)^#SBATCH\s+(?:--job-name[=\s]\s*|-J\s*)(\S+)")
_LINK_LOG = r"""
id=${id%%;*} record=$(scontrol -o show job "${id%%;*}")
# `yard logs` finds the log through this link, even after Slurm has forgotten the job. An array has several logs.
if [[ $record != *ArrayTaskId=* && $record =~ StdOut=([^[:space:]]+) ]]; then
  ln -sfn "${BASH_REMATCH[1]}" "../.log-$id"
fi
echo "$id"
"""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked job. `files` maps the names of the job's files to their contents.

    `file` is the job's name in messages, and `script` is the name of its main file. `tree` is the directory to upload,
    and `working_tree` is the directory whose git state is recorded. `starts` describes the processes that the job
    starts. `after` contains the numbers of the jobs that must complete first. `at_once` is the maximum number of an
    array's jobs that run at the same time, or None if there is no limit. `group` (names separated by commas), `nodes`
    and `seconds` (the time limit of each start) are empty for a Slurm script, which specifies its own size.
    `usd_per_hour` is the list price of the nodes, or None if it is unknown. `cost_limit` describes the effect of
    `max_usd`, or is empty.
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


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """A planned cluster from the stack file `file`. `reason` explains why the stack has no outputs.

    `costs` describes the cluster's list prices.
    """

    file: str
    reason: str
    cluster: Cluster
    costs: Sequence[str]

    @property
    def notice(self) -> str:
        """A notice that tells users that a plan replaces the cluster."""
        return f"dry run with the plan of {self.file}, without a cluster"


def estimate(rehearsal: Rehearsal, jobs: Sequence[Prepared]) -> dict[str, Any]:
    """Return the estimated cost in the format that `--json` prints. Unknown values are None."""
    job = jobs[0]
    hourly = None if job.usd_per_hour is None else round(job.usd_per_hour, 2)
    limit = None if hourly is None else round(hourly * job.seconds / 3600 * len(jobs), 2)
    return {
        "source": "plan",
        "file": rehearsal.file,
        "group": job.group or None,
        "nodes": job.nodes or None,
        "cluster_usd_per_hour": rehearsal.cluster.usd_per_hour,
        "job_usd_per_hour": hourly,
        "limit_s": job.seconds or None,
        "usd_at_limit": limit,
        "max_usd": job.max_usd,
        # The duration is unknown, because no job's run on a cloud is recorded.
        "time_s": None,
    }


def estimate_lines(rehearsal: Rehearsal, jobs: Sequence[Prepared]) -> Iterator[str]:
    """Yield the estimated cost as sentences."""
    job, found = jobs[0], estimate(rehearsal, jobs)
    if not job.nodes:
        yield "job: its size is in the script, so yard does not check whether it fits; Slurm checks it"
    else:
        each = f"each of {len(jobs)} jobs" if len(jobs) > 1 else "job"
        hourly = "unknown" if found["job_usd_per_hour"] is None else f"${found['job_usd_per_hour']:.2f}"
        group = job.group.replace(",", " or ")
        yield f"{each}: fits on {counted(job.nodes, 'node')} of group {group}; list price per hour: {hourly}"
        cost = "" if found["usd_at_limit"] is None else f", which costs at most ${found['usd_at_limit']:.2f}"
        ends = f"each start ends after {duration(job.seconds)}{cost}"
        yield f"time: unknown, because no run on these machines is recorded; {ends}"
        if job.cost_limit:
            yield job.cost_limit
    yield from (f"cluster: {line}" for line in rehearsal.costs)
    if job.environment is None:
        yield "environment: Python of the nodes or the container; images of clouds have no PyTorch (use --env torch)"
    yield rehearsal.notice


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


Prepare = Callable[[Cluster], Sequence[Prepared]]
"""A function that prepares a job, or an array's jobs, for a cluster."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `yard submit`.

    `job` is a recipe or a file, or None if `words` is a command. `options` are keys of a job file, and `settings` are
    KEY=VALUE pairs. If `code` is set, the program's directory is sent.
    """

    job: str | None
    words: Sequence[str]
    options: Mapping[str, Any]
    settings: Sequence[str]
    smoke: bool
    code: bool


class Program(StrEnum):
    """The kinds of files that `yard submit` accepts."""

    JOB = "job file"
    PYTHON = "Python file"
    SLURM = "Slurm script"


def kind_of(job: str) -> Program:
    """Return what kind of program a recipe or file is. Raises JobFileError if the file cannot be submitted."""
    path = Path(job)
    if job in recipe_names():
        if path.is_file():
            rule = "is a recipe and also a file in this directory"
            fix = f"use `./{job}` for the file; to submit the recipe, run yard in another directory"
            refuse(job, "(file)", rule, fix)
        return Program.JOB
    if path.is_dir():
        refuse(job, "(file)", "is a directory", f"name the program, for example `yard submit {path / 'train.py'}`")
    if path.suffix in {".yaml", ".yml"} or not path.exists():
        find(job)
        return Program.JOB
    text = _text_of(path)
    if path.suffix == ".py":
        try:
            with warnings.catch_warnings(action="ignore"):
                ast.parse(text)
        except SyntaxError as error:
            # The nodes may have a newer Python than this machine, so the fix names a command that skips this check.
            fix = "correct the line; for the syntax of a newer Python on the nodes, use `yard submit -- python3 FILE`"
            refuse(job, f"line {error.lineno or 1}", f"is not valid Python ({error.msg})", fix)
        return Program.PYTHON
    if path.suffix in {".sbatch", ".slurm"} or _DIRECTIVE.search(text):
        if not text.startswith("#!"):
            refuse(job, "line 1", "a Slurm script must begin with `#!`", "write `#!/bin/bash` into the first line")
        return Program.SLURM
    rule = "is not a Python file (.py), a Slurm script (#SBATCH lines) or a job file (.yaml)"
    refuse(job, "(file)", rule, f"rename it, or run it as a command: `yard submit -- bash {shlex.quote(path.name)}`")


def command_job(words: Sequence[str], *, code: bool) -> dict[str, Any]:
    """Return the keys of a job that runs a command once on each node. A single word is a shell command line.

    If `code` is set, the current directory is sent with the job.
    """
    line = words[0] if len(words) == 1 else shlex.join(words)
    name = {"name": job_name(_program_in(line)), "launcher": "srun-node", "run": line}
    return {**name, "code": "."} if code else name


def job_name(text: str) -> str:
    """Convert `text` to a valid job name."""
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower())[:40].strip("._-") or "job"


def _program_in(line: str) -> str:
    """Return the stem of a command's first script or, if the command has no script, of its program."""
    words = [word for word in re.split(r"\s+", line.strip()) if not word.startswith("-")]
    scripts = [word for word in words if word.endswith((".py", ".sh"))]
    return Path((scripts or words or ["job"])[0]).stem


def _text_of(path: Path) -> str:
    if not path.is_file():
        refuse(str(path), "(file)", "is not a regular file", "name a Python file or a Slurm script")
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        refuse(str(path), "(file)", f"cannot be read ({error.strerror})", "make it readable")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        fix = f"name a Python file, or run the program as a command: `yard submit -- ./{shlex.quote(path.name)}`"
        refuse(str(path), "(file)", "is not a text file in UTF-8", fix)
    if not text.strip():
        refuse(str(path), "(file)", "is empty", "save the program in it")
    return text


def prepare_script(path: Path, request: Request, env: Mapping[str, str], cluster: Cluster) -> Prepared:
    """Check a Slurm script and prepare its submission. Raises JobFileError, which lists all problems, or SyncError."""
    options, code = request.options, request.code
    file, folder = str(path), path.parent
    problems = [*_option_problems(options, env), *_cluster_problems(options, cluster)]
    if code and holds_home(folder):
        rule = f"'{folder.resolve()}' is or contains your home directory, which is never sent"
        fix = "move the script to a directory of its own, or send only the script with --no-code"
        problems.append(Problem(path="(file)", rule=rule, fix=fix))
    if problems:
        raise JobFileError(file, problems)
    text = path.read_text()
    warn_about_pmi2([text])
    named = _JOB_NAME_OPTION.search(text)
    return Prepared(
        name=job_name(options.get("name") or (named[1] if named else path.stem)),
        file=file,
        script=SUBMIT_SCRIPT,
        files={SUBMIT_SCRIPT: submit_script(path.name, options, env, request.words)},
        environment=definition_for(file, read_environment(options.get("environment", NO_ENVIRONMENT)), folder),
        packages=packages_for(file, options.get("with", ()), folder),
        tree=collect(file, folder, [path.name]) if code else one_file(path),
        after=options.get("after", ()),
        starts=f"Slurm starts {path.name} once, on the first node",
        working_tree=folder,
    )


def submit_script(script: str, options: Mapping[str, Any], env: Mapping[str, str], args: Sequence[str]) -> str:
    """Return the shell script that submits a Slurm script and prints the job's number."""
    values = {**options, "time": clock(parse_seconds(options.get("time", "")) or 0)}
    words = [f"--{OPTIONS[key]}={values[key]}" for key in options if key in OPTIONS]
    command = shlex.join(["sbatch", "--parsable", *words])
    lines = [
        "#!/usr/bin/env bash",
        f"# Written by yard. Submits {CODE}/{shlex.quote(script)}, and prints the number of the job.",
        "set -euo pipefail",
        *(_ACTIVATE if {"environment", "with"} & options.keys() else ()),
        f"cd {CODE}",
        *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
        f'id=$({command} "$@" {shlex.join([f"./{script}", *args])})',
    ]
    return "\n".join(lines) + _LINK_LOG


def _option_problems(options: Mapping[str, Any], env: Mapping[str, str]) -> list[Problem]:
    found: list[Problem] = []
    for key, value in options.items():
        if key in OPTIONS or key in {"after", "environment", "with"}:
            found += under(key, RULES[key](value))
        else:
            rule = "does not apply to a Slurm script, which starts its own programs"
            found.append(Problem(path=key, rule=rule, fix="omit the option, and write it into the script"))
    return [*found, *under("--set", environment(dict(env)))]


def _cluster_problems(options: Mapping[str, Any], cluster: Cluster) -> list[Problem]:
    refuse_unready(cluster)
    if cluster.scheduler == "none":
        rule = f"a Slurm script needs Slurm, and cluster '{cluster.name}' has no scheduler"
        fix = "submit its program (`yard submit train.py` or `yard submit -- COMMAND`), or use a stack with Slurm"
        return [Problem(path="(file)", rule=rule, fix=fix)]
    groups = list(dict.fromkeys(node.group for node in cluster.nodes))
    if options.get("group", groups[0]) not in groups:
        rule = f"cluster '{cluster.name}' has no node group '{options['group']}'"
        return [Problem(path="group", rule=rule, fix=f"use one of: {', '.join(groups)}")]
    return []


def read_request(request: Request) -> Prepare:
    """Check a request without the cluster, and return the function that prepares its jobs for a cluster."""
    job, options = request.job, request.options
    env = environment_of(job or COMMAND_LINE, request.settings)
    if job is None:
        _refuse_smoke(request, COMMAND_LINE)
        keys = command_job(request.words, code=_sends_here(request))
        return partial(prepare_all, check_job(COMMAND_LINE, Path(), {**keys, **options}, env, ()))
    path, kind = Path(job), kind_of(job)
    if kind is Program.JOB:
        return partial(prepare_all, load_job(job, options, env, request.words, smoke=request.smoke))
    _refuse_smoke(request, job)
    if kind is Program.SLURM:
        return lambda cluster: [prepare_script(path, request, env, cluster)]
    program = {"code": ".", "script": path.name} if request.code else {"workload": f"./{path.name}"}
    keys = {"name": job_name(path.stem), "launcher": "torchrun", **program, **options}
    return partial(prepare_all, check_job(job, path.parent, keys, env, request.words))


def own_path(environment: str | None) -> str | None:
    """Return --env. A path becomes absolute, because it is relative to the current directory, not the job file."""
    return str(Path(environment).absolute()) if environment is not None and is_file(environment) else environment


def options_of(environment: str | None, packages: Sequence[str] | None, **given: Any) -> dict[str, Any]:
    """Return the keys of a job file for the options that are set. Paths become absolute as in `own_path`."""
    paths = [str(Path(value).absolute()) if is_path(value) else value for value in packages or ()]
    keys = {**given, "environment": own_path(environment), "with": paths or None}
    return {key: value for key, value in keys.items() if value is not None}


def _sends_here(request: Request) -> bool:
    if not request.code or not holds_home(Path()):
        return request.code
    warn("yard: no files are sent, because the current directory is or contains your home directory")
    return False


def _refuse_smoke(request: Request, job: str) -> None:
    if request.smoke:
        fix = "omit --smoke; only recipes and job files have a smoke size"
        refuse(job, "smoke", "this job has no smoke size", fix)
