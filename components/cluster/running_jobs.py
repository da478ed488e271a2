"""Running jobs on a Slurm cluster: the command that lists them, the parser for its output, and the error message."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

REPLACE = "TRAINYARD_REPLACE_BUSY"
"""Environment variable. If it is `yes`, `pulumi up` changes machines even if this ends running jobs."""

LIST_JOBS = "! command -v squeue >/dev/null || sudo -n squeue -h -a -t R,CF,CG,S -o '%i|%u|%N|%j'"
"""Shell command that prints one line for each job that holds nodes. Such a job is running, configuring, completing or
suspended. The command prints nothing if Slurm is not installed. It does not use `-w`, because squeue then fails if the
list includes a node that is unknown to slurmctld, for example a machine that could not be created
(SchedMD/slurm@284c3b9:src/squeue/opts.c, _filter_nodes; read 2026-11-22)."""

_SHOWN = 20
_PART = re.compile(r"(?P<prefix>[^,\[\]]+)(?:\[(?P<ranges>[0-9,-]+)\])?(?:,|$)")


@dataclass(frozen=True, kw_only=True)
class RunningJob:
    """A job that holds nodes. `nodes` is a Slurm host list ("yard-gpu-[0-3]"), or "" while the job is configuring."""

    id: str
    user: str
    name: str
    nodes: str

    @property
    def line(self) -> str:
        """The job as one line of the message."""
        return f"  job {self.id} ({self.name}) of {self.user} on {self.nodes}"


def parse_jobs(text: str) -> tuple[RunningJob, ...]:
    """Parse the output of LIST_JOBS. Raises ValueError for a malformed line."""
    jobs = []
    for line in filter(None, text.splitlines()):
        # A job name can contain control characters and also the separator.
        number, user, nodes, name = "".join(c if c.isprintable() else "?" for c in line).split("|", 3)
        jobs.append(RunningJob(id=number, user=user, name=name, nodes=nodes))
    return tuple(jobs)


def hosts_of(nodes: str) -> Iterator[str]:
    """Yield the host names in a Slurm host list such as "a-0,b-[0-2,07-08]"."""
    for part in _PART.finditer(nodes):
        if part["ranges"] is None:
            yield part["prefix"]
            continue
        for span in part["ranges"].split(","):
            first, _, last = span.partition("-")
            for number in range(int(first), int(last or first) + 1):
                yield f"{part['prefix']}{number:0{len(first)}}"


def ended_jobs(jobs: Sequence[RunningJob], machines: Collection[str], head: str) -> tuple[RunningJob, ...]:
    """Return the jobs that end if `machines` are replaced. A replacement of the head ends all jobs."""
    if head in machines:
        return tuple(jobs)
    return tuple(job for job in jobs if not set(machines).isdisjoint(hosts_of(job.nodes)))


def busy_message(jobs: Sequence[RunningJob], machines: Sequence[str]) -> str:
    """Return the error message with the machines, the jobs that would end, and the fix."""
    shown = [job.line for job in jobs[:_SHOWN]]
    more = [f"  and {len(jobs) - _SHOWN} more"] if len(jobs) > _SHOWN else []
    return "\n".join(
        [
            f"this change replaces, restarts or removes {listed(machines)}, and running jobs would end:",
            *shown,
            *more,
            "Nothing was changed. Fix: wait until the jobs have ended (`yard ps`) or cancel them (`yard cancel JOB`), "
            "then run `pulumi up` again. To make the change and end the jobs, run `pulumi up` once with "
            f"{REPLACE}=yes in the environment",
        ]
    )


def listed(names: Sequence[str]) -> str:
    """Return the names as text. A long list is shortened to its first names and the number of remaining names."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"
