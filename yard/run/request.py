"""Reads the argument and the options of `yard submit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from trainyard.errors import JobFileError, Problem
from trainyard.outputs import Cluster
from yard.environments.definition import is_file
from yard.job.loader import check_job, environment_of, holds_home, load_job
from yard.job.programs import COMMAND_LINE, Program, command_job, kind_of, python_job
from yard.run.slurm_script import SlurmScript, prepare_script
from yard.run.submit import Prepared, prepare_all
from yard.show import warn


@dataclass(frozen=True, kw_only=True)
class Request:
    """The command line of `yard submit`.

    `job` is a recipe or a file, or None for the command in `words`. `options` are keys of a job file, and `settings`
    are KEY=VALUE pairs. `code`: whether the program's directory is sent.
    """

    job: str | None
    words: Sequence[str]
    options: Mapping[str, Any]
    settings: Sequence[str]
    smoke: bool
    code: bool


Prepare = Callable[[Cluster], Sequence[Prepared]]
"""Function that prepares a job, or the jobs of an array, for a cluster."""


def read_request(request: Request) -> Prepare:
    """Check a request without the cluster, and return the function that prepares its job, or the jobs of its array,
    for a cluster.

    Both functions raise JobFileError, which lists all problems.
    """
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
        script = SlurmScript(path=path, options=options, env=env, args=request.words, code=request.code)
        return lambda cluster: [prepare_script(script, cluster)]
    keys = python_job(path, code=request.code)
    return partial(prepare_all, check_job(job, path.parent, {**keys, **options}, env, request.words))


def own_path(environment: str | None) -> str | None:
    """Return the value of --env. A path is relative to the current directory, and not to the job file."""
    return str(Path(environment).absolute()) if environment is not None and is_file(environment) else environment


def _sends_here(request: Request) -> bool:
    """Return whether the current directory is sent with a command."""
    if not request.code or not holds_home(Path()):
        return request.code
    warn("yard: no files are sent, because the current directory is or contains your home directory")
    return False


def _refuse_smoke(request: Request, job: str) -> None:
    if request.smoke:
        fix = "omit --smoke; only recipes and job files have a smoke size"
        raise JobFileError(job, [Problem(path="smoke", rule="this job has no smoke size", fix=fix)])
