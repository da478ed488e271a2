"""Submits a user's Slurm script unchanged. Options on sbatch's command line override the script's options.

The run folder contains SUBMIT_SCRIPT and the folder `code` with the script. The job starts in `code`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.errors import JobFileError, Problem
from trainyard.outputs import Cluster
from yard.environments.definition import NO_ENVIRONMENT
from yard.job.chosen_environment import read_environment
from yard.job.loader import definition_for, holds_home
from yard.job.placement import refuse_unready
from yard.job.programs import job_name
from yard.job.rules import ENVIRONMENT_FILE, environment, parse_seconds, under
from yard.job.spec import RULES
from yard.run.schedulers.slurm import SUBMIT_SCRIPT, clock
from yard.run.submit import Prepared, warn_about_pmi2
from yard.script.render import CODE
from yard.tree.files import collect, one_file

OPTIONS = {
    "name": "job-name",
    "nodes": "nodes",
    "gpus_per_node": "gpus-per-node",
    "group": "partition",
    "time": "time",
    "array": "array",
}
"""Keys of a job file and the corresponding options of sbatch."""
# By default, sbatch passes its own environment variables to the job (sbatch(1), --export, read 2026-11-23).
_ACTIVATE = (
    f"if [[ -e {ENVIRONMENT_FILE} ]]; then",
    f"  VIRTUAL_ENV=$(<{ENVIRONMENT_FILE})",
    "  export VIRTUAL_ENV PATH=$VIRTUAL_ENV/bin:$PATH",
    "fi",
)
_NAME = re.compile(r"(?m)^#SBATCH\s+(?:--job-name[=\s]\s*|-J\s*)(\S+)")
_LINK_LOG = r"""
id=${id%%;*} record=$(scontrol -o show job "${id%%;*}")
# `yard logs` finds the log through this link, even after Slurm has forgotten the job. An array has several logs.
if [[ $record != *ArrayTaskId=* && $record =~ StdOut=([^[:space:]]+) ]]; then
  ln -sfn "${BASH_REMATCH[1]}" "../.log-$id"
fi
echo "$id"
"""


@dataclass(frozen=True, kw_only=True)
class SlurmScript:
    """A user's Slurm script and its arguments. `options` are keys of a job file. With `code`, the script's directory is
    also sent.
    """

    path: Path
    options: Mapping[str, Any]
    env: Mapping[str, str]
    args: Sequence[str]
    code: bool


def prepare_script(script: SlurmScript, cluster: Cluster) -> Prepared:
    """Check a script and prepare its submission. Raises JobFileError, which lists all problems, and SyncError."""
    path, options, env, code = script.path, script.options, script.env, script.code
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
    named = _NAME.search(text)
    return Prepared(
        name=job_name(options.get("name") or (named[1] if named else path.stem)),
        file=file,
        script=SUBMIT_SCRIPT,
        files={SUBMIT_SCRIPT: submit_script(path.name, options, env, script.args)},
        environment=definition_for(file, read_environment(options.get("environment", NO_ENVIRONMENT)), folder),
        tree=collect(file, folder, [path.name]) if code else one_file(path),
        after=options.get("after", ()),
        starts=f"Slurm starts {path.name} once, on the first node",
        working_tree=folder,
    )


def submit_script(script: str, options: Mapping[str, Any], env: Mapping[str, str], args: Sequence[str]) -> str:
    """Return the shell script that submits a Slurm script and prints the job's number."""
    words = [f"--{OPTIONS[key]}={_value(key, value)}" for key, value in options.items() if key in OPTIONS]
    command = shlex.join(["sbatch", "--parsable", *words])
    lines = [
        "#!/usr/bin/env bash",
        f"# Written by yard. Submits {CODE}/{shlex.quote(script)}, and prints the number of the job.",
        "set -euo pipefail",
        *(_ACTIVATE if "environment" in options else ()),
        f"cd {CODE}",
        *(f"export {name}={shlex.quote(value)}" for name, value in env.items()),
        f'id=$({command} "$@" {shlex.join([f"./{script}", *args])})',
    ]
    return "\n".join(lines) + _LINK_LOG


def _value(key: str, value: Any) -> str:
    return clock(parse_seconds(value) or 0) if key == "time" else str(value)


def _option_problems(options: Mapping[str, Any], env: Mapping[str, str]) -> list[Problem]:
    found: list[Problem] = []
    for key, value in options.items():
        if key in OPTIONS or key in {"after", "environment"}:
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
