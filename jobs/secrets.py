"""The secrets of a job: values of environment variables that are in no readable file, argument or log.

A job file lists names only. `yard submit` reads the values from its own environment and sends them over SSH's standard
input. On the cluster they are in SECRETS_FILE, mode 0600, in the job's folder, mode 0700. The job's script sources that
file in each task, so Slurm's copy of the script and of the environment contains no value.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from components.errors import Problem
from jobs.errors import JobFileError

SECRETS_FILE = "secrets.sh"


def secrets_script(job: str, names: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return the shell lines that export the named variables of `environ`.

    Raises JobFileError, which lists every variable that is unset or empty. The message contains no value.
    """
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise JobFileError(
            job,
            [
                Problem(
                    path="secrets",
                    rule=f"the environment variable {name} is not set where yard runs",
                    fix=f"run `read -rs {name} && export {name}`, paste the value, and submit again",
                )
                for name in missing
            ],
        )
    return "".join(f"export {name}={shlex.quote(environ[name])}\n" for name in names)
