"""Renders a job's files: its script, the shared shell code, the workload, and the files defined in the job file.

The shared shell code is uploaded with each job, so that a requeued or resumed job runs the same code as before.

A job file lists the names of the job's secrets. `yard submit` reads their values from its own environment and sends
them on ssh's standard input. On the cluster, the values are in SECRETS_FILE in the run folder, which only the job user
can read. Each task sources this file, so that Slurm's copies of the script and the environment contain no secrets.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from trainyard.errors import JobFileError, Problem
from yard.job.launcher import Source
from yard.job.loader import WORKLOADS, LoadedJob
from yard.job.placement import Placement
from yard.job.spec import INDEX, SHARED_SCRIPT, SSH_PORT, JobSpec, variables
from yard.run import flight, goodput, hang, stall
from yard.run.containers import PASSED_ON, container_lines
from yard.run.schedulers import scheduler_of
from yard.show import counted

RUN_LINES = "run.sh"
SETUP_LINES = "setup.sh"
GOODPUT, FLIGHT, HANG, STALL = "goodput.py", "flight.py", "hang.py", "stall.py"
CODE = "code"
"""The subfolder of the run folder that contains the uploaded directory."""
_WARNING = "# Ignore the warning before the time limit, unless the program handles it."
SECRETS_FILE = "secrets.sh"


def shell_word(text: str) -> str:
    """Quote `text` for bash, except for variables such as $RANK, which bash must expand."""
    parts: list[str] = []
    end = 0
    for start, stop, name in variables(text):
        parts += [shlex.quote(text[end:start]) if start > end else "", f'"${name}"']
        end = stop
    if end < len(text) or not parts:
        parts.append(shlex.quote(text[end:]))
    return "".join(parts)


def render_files(job: LoadedJob, placement: Placement) -> dict[str, str]:
    """Return a mapping from name to contents for all files that a job needs."""
    spec, scheduler = job.spec, scheduler_of(placement.scheduler)
    files = {
        scheduler.script: render_script(job, placement),
        SHARED_SCRIPT: shared_script(scheduler.shell),
        **scheduler.files(job, placement),
        HANG: Path(hang.__file__).read_text(),
        FLIGHT: Path(flight.__file__).read_text(),
        **spec.files,
    }
    if spec.checkpoint_dir is not None:
        files[GOODPUT] = Path(goodput.__file__).read_text()
    if spec.stall_minutes is not None:
        files[STALL] = Path(stall.__file__).read_text()
    for file in workload_files(job.workload) if job.workload is not None else ():
        files[file.name] = file.read_text()
    for name, lines in ((RUN_LINES, spec.run), (SETUP_LINES, spec.setup)):
        if lines is not None:
            files[name] = lines.rstrip("\n") + "\n"
    return files


_DESCRIPTIONS = frozenset({"about", "software", "verified", "unverified", "files", "env", "container", "environment"})
"""The fields of a job that its record describes in another way, or not at all."""


def render_record(job: LoadedJob, placement: Placement) -> dict[str, Any]:
    """Return what the user has chosen for a job, as text, for its record (record.json).

    The names of secrets are included, but not their values, which are not in the job file.
    """
    spec = job.spec
    plain = {field.name: field.default for field in fields(JobSpec) if field.name not in _DESCRIPTIONS}
    values = {name: getattr(spec, name) for name in plain}
    arguments = {name: value for name, value in values.items() if value and value != plain[name]}
    texts = {**spec.files, **({job.workload.name: job.workload.read_text()} if job.workload is not None else {})}
    environment = {
        "environment": job.environment.name if job.environment is not None else "",
        "lock": job.environment.digest if job.environment is not None else "",
        "image": spec.container.image if spec.container is not None else "",
        "runtime": spec.runtime,
    }
    return {
        "name": spec.name,
        "arguments": {
            **{name: shlex.join(map(str, value)) if isinstance(value, list | tuple) else str(value)
               for name, value in arguments.items()},
            "launcher": spec.launcher,
            **{f"env {name}": value for name, value in placement.env.items()},
            **{f"env {name}": value for name, value in spec.env.items()},
        },
        "environment": {name: value for name, value in environment.items() if value},
        "files": {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in sorted(texts.items())},
        "placement": {
            "groups": ", ".join(placement.groups), "nodes": str(placement.nodes),
            "GPUs per node": str(placement.gpus_per_node), "ranks per node": str(placement.tasks_per_node),
            "scheduler": placement.scheduler,
        },
        "usd_per_hour": placement.usd_per_hour,
    }  # fmt: skip


def workload_files(workload: Path) -> list[Path]:
    """Return a workload file and, for NAME.py in yard/workloads, its modules NAME_*.py."""
    modules = workload.parent.glob(f"{workload.stem}_*.py") if workload.parent == WORKLOADS else ()
    return [workload, *sorted(modules)]


def shared_script(end: str) -> str:
    """Return yard.sh, which is the same for all of a scheduler's jobs. The file `end` contains its last part."""
    here = Path(__file__).parent
    _, _, last = (here / end).read_text().partition("\n")
    names = f"readonly provided_names=({' '.join(PASSED_ON)})"
    return f"{(here / 'shared.sh').read_text()}\n{names}\n\n{last}"


def render_script(job: LoadedJob, placement: Placement) -> str:
    """Return a job's script, whose last line sources yard.sh."""
    spec, scheduler = job.spec, scheduler_of(placement.scheduler)
    floor = "" if placement.busbw_floor is None else f"{placement.busbw_floor:g}"
    index = {} if job.element is None else {INDEX: str(job.element)}
    exports = {**placement.env, "BUSBW_FLOOR": floor, **index, **spec.env}
    over_ssh = spec.container is not None and job.launcher.over_ssh
    lines = [
        *_opening(job, placement),
        *scheduler.header(job, placement),
        "set -euo pipefail",
        "",
        f"readonly workdir={shlex.quote(spec.workdir or (CODE if job.code is not None else ''))}",
        f"readonly own_env=({' '.join(sorted(exports))})",
        *scheduler.settings(job, placement),
        *container_lines(spec.container, placement, over_ssh=over_ssh),
        "",
        "work() {",
        *(f"  {line}" for line in _work(job, placement, exports, over_ssh=over_ssh)),
        "}",
        "",
        *scheduler.source_lines,
    ]
    return "\n".join(lines) + "\n"


def _opening(job: LoadedJob, placement: Placement) -> list[str]:
    size = f"{counted(placement.nodes, 'node')}, {counted(placement.nodes * placement.tasks_per_node, 'rank')}"
    lines = ["#!/usr/bin/env bash", f"# Job {job.spec.name}: {size}, started by {job.launcher.title}."]
    notes = (("Needs", job.spec.software), ("Unverified", job.spec.unverified))
    return lines + [f"# {word}: {line}" for word, text in notes for line in (text or "").splitlines()]


def _work(job: LoadedJob, placement: Placement, exports: Mapping[str, str], *, over_ssh: bool) -> list[str]:
    spec, library = job.spec, placement.transport.library_path
    return [
        *([f"use_transport {shlex.quote(library)}"] if library is not None else []),
        *(f"export {name}={shell_word(value)}" for name, value in exports.items()),
        *([f'source "$RUN_DIR/{SECRETS_FILE}"'] if spec.secrets else []),
        # With `run`, USR2 is not ignored, because a shell cannot trap a signal that was already ignored at its start.
        *([_WARNING, "trap '' USR2"] if spec.source is not Source.RUN else []),
        *_launch(job, over_ssh=over_ssh),
    ]


def _launch(job: LoadedJob, *, over_ssh: bool) -> list[str]:
    spec = job.spec
    if spec.source is Source.RUN:
        start = f'bash --norc -euo pipefail -c \'trap "" USR2; source "$0"\' "$RUN_DIR/{RUN_LINES}"'
    elif job.workload is not None:
        start = f'"$RUN_DIR/"{shlex.quote(job.workload.name)}'
    else:
        start = shlex.quote(spec.script or "")
    file = " ".join((start, *map(shell_word, spec.args)))
    values = {"file": file, "command": file if spec.source is Source.RUN else f"python3 -u {file}"}
    values["min_nodes"] = str(spec.min_nodes or 1)
    if over_ssh:
        values["ssh_port"] = str(SSH_PORT)
    return job.launcher.lines(values)


def secrets_script(job: str, names: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return shell lines that export variables from `environ`. Raises JobFileError, which lists the unset variables."""
    problems = [
        Problem(
            path="secrets",
            rule=f"environment variable {name} is not set on this machine",
            fix=f"run `read -rs {name} && export {name}`, paste the value, and submit again",
        )
        for name in names
        if not environ.get(name)
    ]
    if problems:
        raise JobFileError(job, problems)
    return "".join(f"export {name}={shlex.quote(environ[name])}\n" for name in names)
