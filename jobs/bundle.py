"""Submission: everything a job needs in one tar on ssh's stdin, and the answer from the same connection."""

from __future__ import annotations

import io
import secrets
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from jobs.errors import RemoteError
from jobs.remote import Remote
from jobs.schedulers import scheduler_of

_SUBMIT_SECONDS = 90


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A job that was accepted."""

    job: int
    run_dir: str


def run_dir_name(name: str, now: datetime, token: str) -> str:
    """Return the name of a job's folder: readable, sortable, never used twice."""
    return f"{name}-{now:%Y%m%d-%H%M%S}-{token}"


def pack(folder: str, files: Mapping[str, str]) -> bytes:
    """Return a tar of the files, in a folder of that name. Only their owner may read them."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in sorted(files.items()):
            content = text.encode()
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode = len(content), 0o600
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def submit(remote: Remote, job_name: str, files: Mapping[str, str], chain: int) -> Submitted:
    """Submit a rendered job. Raises RemoteError with the scheduler's own words when it is refused."""
    jobs_dir = f"{remote.stack.cluster.shared_path}/jobs"
    name = run_dir_name(job_name, datetime.now(UTC), secrets.token_hex(2))
    line = scheduler_of(remote.stack.cluster).submit_line(jobs_dir, name, chain)
    said = remote.run(line, stdin=pack(name, files), seconds=_SUBMIT_SECONDS).split()
    if not said or not said[-1].isdigit():
        raise RemoteError(f"the head gave no job id but '{' '.join(said)}'; look with `yard ps`")
    return Submitted(job=int(said[-1]), run_dir=f"{jobs_dir}/{name}")
