"""A job's secrets: environment variables that are hidden from other users and never appear in logs.

A job file lists the names of the variables. `yard submit` reads the values from its own environment and sends them over
SSH's standard input. On the cluster, the values are stored in SECRETS_FILE in the run folder, which only the job user
can read. Each task sources this file, so Slurm's copies of the job's script and environment contain no secret values.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from trainyard.errors import JobFileError, Problem

SECRETS_FILE = "secrets.sh"


def secrets_script(job: str, names: Sequence[str], environ: Mapping[str, str]) -> str:
    """Return shell lines that export the named variables from `environ`.

    Raises JobFileError, which names all variables that are unset or empty.
    """
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise JobFileError(
            job,
            [
                Problem(
                    path="secrets",
                    rule=f"environment variable {name} is not set on this machine",
                    fix=f"run `read -rs {name} && export {name}`, paste the value, and submit again",
                )
                for name in missing
            ],
        )
    return "".join(f"export {name}={shlex.quote(environ[name])}\n" for name in names)
