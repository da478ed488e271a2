"""Who sees to jobs on a cluster: Slurm, or yard's own runner where there is no scheduler. The commands know neither."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jobs.facts import Cluster
from jobs.queue import Job
from jobs.remote import Remote


class Scheduler(Protocol):
    """What a command may ask about jobs and nodes."""

    def submit_line(self, jobs_dir: str, name: str, chain: int) -> str:
        """Return the shell line that takes a job's tar on stdin, starts it, and prints its number.

        `chain`: how many jobs of it follow one another; the first one's number is printed.
        """

    def recent(self, remote: Remote, days: int) -> list[Job]:
        """Return the jobs of the last `days`, newest first."""

    def find(self, remote: Remote, job: int) -> Job | None:
        """Return one job; None: there is none of this number."""

    def cancel(self, remote: Remote, jobs: Sequence[Job]) -> None:
        """End jobs that have not ended."""

    def resume(self, remote: Remote, job: Job) -> int:
        """Start an ended job again in its folder, so that it goes on from its checkpoint. Returns its number now."""

    def nodes(self, remote: Remote) -> dict[str, tuple[str, str]]:
        """Return the state of each node, and why where it is no good one."""


def scheduler_of(cluster: Cluster) -> Scheduler:
    """Return the one that the cluster has."""
    if cluster.scheduler == "none":
        from jobs.schedulers.runner import Runner  # noqa: PLC0415

        return Runner()
    from jobs.schedulers.slurm import Slurm  # noqa: PLC0415

    return Slurm()
