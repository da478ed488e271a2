"""Slurm, by its own commands on the head."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from jobs.errors import RemoteError
from jobs.queue import Job, parse_one, query_line, recent_jobs
from jobs.remote import Remote
from jobs.schedulers.unpack import UNPACK

SINFO = "sinfo -h -N -o '%N|%T|%E'"
_LINK = 'id=${id%%;*}; ln -sfn "../$name" "../.ids/$id"; echo "$id"'
"""A link by id leads to the run folder, so that logs need neither Slurm nor its accounting to be found."""


def parse_sinfo(text: str) -> dict[str, tuple[str, str]]:
    """Parse SINFO's output: name -> (state, reason); a mark after the state ('*': does not answer) is kept."""
    rows = (line.split("|", 2) for line in text.splitlines() if line.count("|") >= 2)  # noqa: PLR2004  (two bars)
    return {name: (state, "" if reason == "none" else reason) for name, state, reason in rows}


class Slurm:
    """A cluster whose outputs say `scheduler: slurm`."""

    def submit_line(self, jobs_dir: str, name: str, chain: int) -> str:
        """Return a line of few processes: every one is felt where the head is emulated, and somebody waits."""
        more = ""
        if chain > 1:
            # Each waits for the one before it, however that ended; the first to finish the work ends the chain.
            wait = '"--dependency=afterany:${last%%;*}"'
            link = 'ln -sfn "../$name" "../.ids/${last%%;*}"'
            more = (
                f"; last=$id; for _ in $(seq {chain - 1}); do last=$(sbatch --parsable {wait} job.sbatch); {link}; done"
            )
        return (
            f"set -eu; umask 022; cd {shlex.quote(jobs_dir)}; [ -d .ids ] || mkdir -p .ids; {UNPACK}; "
            f'name={shlex.quote(name)}; cd "$name"; '
            f'id=$(sbatch --parsable job.sbatch) || {{ cd ..; rm -r "$name"; exit 1; }}{more}; {_LINK}'
        )

    def recent(self, remote: Remote, days: int) -> list[Job]:
        """Ask the controller, and the accounting for what it has forgotten."""
        return recent_jobs(remote, days)

    def find(self, remote: Remote, job: int) -> Job | None:
        """Ask the controller, else the accounting."""
        return parse_one(remote.run(query_line(job)))

    def cancel(self, remote: Remote, jobs: Sequence[Job]) -> None:
        """Cancel by number."""
        remote.run("scancel " + " ".join(str(job.id) for job in jobs))

    def resume(self, remote: Remote, job: Job) -> int:
        """Submit the script again where it lies; Slurm gives it a new number."""
        folder = shlex.quote(job.run_dir)
        said = remote.run(
            f"set -eu; cd {folder}; date '+%s resume' >>events; id=$(sbatch --parsable job.sbatch); "
            f"name=$(basename {folder}); {_LINK}"
        ).split()
        if not said or not said[-1].isdigit():
            raise RemoteError(f"sbatch gave no job id but '{' '.join(said)}'; look with `yard ps`")
        return int(said[-1])

    def nodes(self, remote: Remote) -> dict[str, tuple[str, str]]:
        """Ask sinfo."""
        return parse_sinfo(remote.run(SINFO))
