"""No scheduler: yard's runner, which travels with each job. What it wrote down is read, and it is told by signals."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.queue import Job
from jobs.remote import Remote
from jobs.schedulers.unpack import UNPACK

_ASK = Path(__file__).parent / "ask.py"


class Runner:
    """A cluster whose outputs say `scheduler: none`."""

    def submit_line(self, jobs_dir: str, name: str, chain: int) -> str:
        """Return a line that unpacks and starts the runner."""
        folder = shlex.quote(f"{jobs_dir}/{name}")
        return (
            f"set -eu; umask 022; mkdir -p {shlex.quote(jobs_dir)}; cd {shlex.quote(jobs_dir)}; {UNPACK}; cd {folder}; "
            f"python3 -m runner submit {folder}"
        )

    def recent(self, remote: Remote, days: int) -> list[Job]:
        """Read every job's state; a job whose runner is gone is marked so."""
        return [Job(**row) for row in self._ask(remote, "jobs", str(days))]

    def find(self, remote: Remote, job: int) -> Job | None:
        """Read one job's state."""
        found = [Job(**row) for row in self._ask(remote, "job", str(job))]
        return found[0] if found else None

    def cancel(self, remote: Remote, jobs: Sequence[Job]) -> None:
        """Tell the runners, each of which ends its ranks first."""
        self._ask(remote, "cancel", *(str(job.id) for job in jobs))

    def resume(self, remote: Remote, job: Job) -> int:
        """Start the runner again under the same number."""
        folder = shlex.quote(job.run_dir)
        remote.run(f"cd {folder} && python3 -m runner resume {folder}")
        return job.id

    def nodes(self, remote: Remote) -> dict[str, tuple[str, str]]:
        """Say which nodes hold a job. Whether they answer is for `yard doctor`."""
        held = self._ask(remote, "nodes")
        return {node.name: ("allocated" if node.name in held else "idle", "") for node in remote.stack.cluster.nodes}

    def _ask(self, remote: Remote, *words: str) -> Any:
        folder = shlex.quote(f"{remote.stack.cluster.shared_path}/jobs")
        said = remote.run(f"python3 - {folder} {' '.join(words)}", stdin=_ASK.read_bytes())
        return json.loads(said)
