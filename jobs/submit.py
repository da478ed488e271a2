"""`yard submit`: what the command line wishes, laid over a job file, rendered, and sent or shown."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from components.errors import Problem
from jobs.bundle import Submitted, submit
from jobs.errors import JobFileError
from jobs.facts import Cluster
from jobs.loader import LoadedJob, load_job
from jobs.placement import place
from jobs.remote import Remote
from jobs.render import render_files, script_name
from jobs.secrets import SECRETS_FILE, secrets_script
from jobs.show import say, say_json


@dataclass(frozen=True, kw_only=True)
class Wish:
    """The command line: `overrides` replace keys of the job, `settings` are KEY=VALUE of its environment."""

    job: str
    overrides: Mapping[str, Any]
    settings: tuple[str, ...]
    args: tuple[str, ...]
    smoke: bool

    def load(self) -> LoadedJob:
        """Return the checked job. Raises JobFileError with every problem; asks nobody."""
        pairs = [setting.partition("=") for setting in self.settings]
        wrong = [f"{name}{equals}" for name, equals, _ in pairs if not equals or not name]
        if wrong:
            fix = "write for example --set OMP_NUM_THREADS=2"
            raise JobFileError(
                self.job, [Problem(path="--set", rule=f"'{text}' is not KEY=VALUE", fix=fix) for text in wrong]
            )
        env = {name: value for name, _, value in pairs}
        return load_job(self.job, self.overrides, env, self.args, smoke=self.smoke)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job rendered for a cluster: the files that travel."""

    loaded: LoadedJob
    script: str
    files: Mapping[str, str]


def prepare(loaded: LoadedJob, cluster: Cluster) -> Prepared:
    """Lay the job onto the cluster and render it. Raises JobFileError when it does not fit."""
    placement = place(loaded, cluster)
    return Prepared(loaded=loaded, script=script_name(placement), files=render_files(loaded, placement))


def show_files(prepared: Prepared, as_json: bool) -> None:
    """Print what would be sent: the script, and the shell lines of a job that has some."""
    if as_json:
        say_json({"dry_run": True, "name": prepared.loaded.spec.name, "files": dict(prepared.files)})
        return
    workload = prepared.loaded.workload
    say(prepared.files[prepared.script])
    for name, text in prepared.files.items():
        if name != prepared.script:
            lines = f"({len(text.splitlines())} lines)\n" if workload and name == workload.name else text
            say(f"# --- {name}, beside it\n{lines}")


def send(remote: Remote, prepared: Prepared, as_json: bool) -> Submitted:
    """Submit the job and print its number. Raises JobFileError when a secret is not set where yard runs."""
    spec = prepared.loaded.spec
    name, files = spec.name, dict(prepared.files)
    if spec.secrets:
        files[SECRETS_FILE] = secrets_script(prepared.loaded.file, spec.secrets, os.environ)
    submitted = submit(remote, name, files, spec.chain)
    if as_json:
        say_json({"id": submitted.job, "name": name, "run_dir": submitted.run_dir})
    else:
        say(f"job {submitted.job} ({name}) submitted; its folder is {submitted.run_dir}")
    return submitted
