"""Reads the command line of `yard submit`: a recipe, a job file, a Python file, a Slurm script or a shell command.

A user's Slurm script is submitted unchanged, with options on sbatch's command line that override the script's options.
Its run folder contains SUBMIT_SCRIPT and the folder `code`. The script is in `code`, and the job starts there.
"""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.errors import JobFileError, Problem
from trainyard.outputs import Cluster
from yard.environments.definition import NO_ENVIRONMENT, is_file, read_environment
from yard.environments.packages import is_path
from yard.job.loader import (
    check_job,
    definition_for,
    environment_of,
    find,
    holds_home,
    load_job,
    packages_for,
    recipe_names,
)
from yard.job.placement import refuse_unready
from yard.job.spec import (
    ENVIRONMENT_FILE,
    RULES,
    environment,
    parse_seconds,
    refuse,
    under,
)
from yard.run.schedulers import SUBMIT_SCRIPT, clock
from yard.run.script import CODE
from yard.run.submit import Prepared, prepare_all, warn_about_pmi2
from yard.show import warn
from yard.tree.files import collect, one_file

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
        record={
            "arguments": {
                **{key: str(value) for key, value in options.items()},
                "script": path.name,
                "args": shlex.join(request.words),
                **{f"env {key}": env[key] for key in env},
            }
        },
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
