"""Command `yard submit`: checks a job, renders its files, and submits or prints them."""

from __future__ import annotations

import io
import os
import secrets
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from yard.contract.outputs import Cluster
from yard.errors import JobFileError
from yard.job.loader import LoadedJob
from yard.job.placement import place
from yard.job.rules import SHARED_SCRIPT
from yard.job.secrets import SECRETS_FILE, secrets_script
from yard.run.queue import submitted_job
from yard.run.schedulers.registry import scheduler_of
from yard.script.render import render_files
from yard.show import payload, say, say_json
from yard.stack.remote import Remote

_SUBMIT_SECONDS = 90


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A checked job and the contents of its files by name. `script` is the name of the job's script."""

    loaded: LoadedJob
    script: str
    files: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A submitted job: its number and run folder."""

    job: int
    run_dir: str


def prepare(loaded: LoadedJob, cluster: Cluster) -> Prepared:
    """Check the job against the cluster and render its files. Raises JobFileError if the job does not fit."""
    scheduler = scheduler_of(cluster.scheduler)
    if problems := list(scheduler.problems(loaded)):
        raise JobFileError(loaded.file, problems)
    return Prepared(loaded=loaded, script=scheduler.script, files=render_files(loaded, place(loaded, cluster)))


def show_files(prepared: Prepared, as_json: bool) -> None:
    """Print the job's script and the other files. Without `as_json`, only the line count is printed for long files."""
    files = dict(prepared.files)
    if as_json:
        say_json({"dry_run": True, "name": prepared.loaded.spec.name, "files": files})
        return
    payload(files.pop(prepared.script))
    for name, text in files.items():
        long = name == SHARED_SCRIPT or name.endswith(".py")
        shown = f"({len(text.splitlines())} lines; --json prints them)\n" if long else text
        payload(f"# --- {name}, in the same folder\n{shown}")


def send(remote: Remote, prepared: Prepared, as_json: bool) -> Submitted:
    """Submit the job and print its number. Raises the same errors as `submit`."""
    submitted = submit(remote, prepared)
    name = prepared.loaded.spec.name
    if as_json:
        say_json({"id": submitted.job, "name": name, "run_dir": submitted.run_dir})
    else:
        say(f"job {submitted.job} ({name}) submitted; its folder is {submitted.run_dir}")
    return submitted


def submit(remote: Remote, prepared: Prepared) -> Submitted:
    """Submit the job. Raises JobFileError if a secret is not set, and RemoteError if the scheduler rejects the job."""
    spec, files = prepared.loaded.spec, dict(prepared.files)
    if spec.secrets:
        files[SECRETS_FILE] = secrets_script(prepared.loaded.file, spec.secrets, os.environ)
    jobs_dir = f"{remote.stack.cluster.shared_path}/jobs"
    name = run_dir_name(spec.name, datetime.now(UTC), secrets.token_hex(2))
    line = scheduler_of(remote.stack.cluster.scheduler).submit_line(jobs_dir, name, spec.chain)
    printed = remote.run(line, stdin=pack(name, files), seconds=_SUBMIT_SECONDS)
    return Submitted(job=submitted_job(printed), run_dir=f"{jobs_dir}/{name}")


def run_dir_name(name: str, now: datetime, token: str) -> str:
    """Return a unique name for a run folder. The names of a job's run folders sort by time."""
    return f"{name}-{now:%Y%m%d-%H%M%S}-{token}"


def pack(folder: str, files: Mapping[str, str]) -> bytes:
    """Return a tar archive that contains `files` in a folder named `folder`. Only the owner can read the files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
