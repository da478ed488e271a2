"""Jobs that do not use their GPUs on the head, with fake commands of Slurm in the format of Slurm 24.11."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from repair.idle_jobs import IdleLimit
from repair.service import Group, Service, Site

from trainyard.faults import HISTORY, NOTICES
from trainyard.idle_gpus import render_report

WALL = 1_764_000_000.0
NODES = {"n-0": "10.0.0.1", "n-1": "10.0.0.2"}
MINUTE = 60.0


@dataclass(frozen=True)
class Job:
    """A running job. `start` is a time on the head's clock."""

    nodes: int = 1
    array: str = ""
    """The array and the task, for example 7_3."""
    het: str = "N/A"
    start: float = 0.0
    is_batch: bool = True
    may_requeue: bool = True


@dataclass
class Head:
    """The head of two workers. `idle`: for each node, the seconds for which each job has been idle."""

    folder: Path
    limit: IdleLimit
    jobs: dict[int, Job] = field(default_factory=lambda: {7: Job()})
    idle: dict[str, dict[int, float]] = field(default_factory=dict)
    now: float = 100 * MINUTE
    age: float = 0.0
    """The age of the reports in seconds."""
    answers: bool = True
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / HISTORY).parent.mkdir()
        self.restart()

    def restart(self) -> None:
        site = Site(15, (Group("a", 0, NODES),), idle_gpu=self.limit)
        self.service = Service(site, self.folder, self.control, self.queue, self.cancel, answering=self.answering)

    def answering(self, addresses: Mapping[str, str]) -> set[str]:
        return set(addresses)

    def control(self, *arguments: str) -> str | None:
        if arguments == ("-o", "show", "node"):
            wall = WALL + self.now - self.age
            return "".join(f"NodeName={name} State=MIXED BootTime=x{self._extra(name, wall)}\n" for name in NODES)
        if arguments[-1] == "reservation":
            return ""
        self.calls.append(" ".join(arguments))
        return "" if self.answers else None

    def _extra(self, name: str, wall: float) -> str:
        report = render_report(self.idle.get(name, {}), wall)
        return f" Extra={report}" if report else ""

    def queue(self, *arguments: str) -> str | None:
        assert arguments[:5] == ("-h", "-a", "-t", "R", "-O")
        return "".join(self._row(number, job) for number, job in self.jobs.items()) if self.answers else None

    def _row(self, number: int, job: Job) -> str:
        array, _, task = job.array.partition("_")
        fields = (number, array or number, task or "N/A", job.het, job.nodes, f"{WALL + job.start:.0f}",
                  int(job.is_batch), int(job.may_requeue))  # fmt: skip
        return "".join(f"{field:<20}" for field in fields) + "\n"

    def cancel(self, *arguments: str) -> str | None:
        self.calls.append(f"scancel {' '.join(arguments)}")
        return "" if self.answers else None

    def after(self, minutes: float, nodes: Collection[str] = ("n-0",), jobs: Collection[int] = (7,)) -> list[str]:
        """Let the jobs be idle on the nodes for this long. Return the calls that concern jobs."""
        self.calls.clear()
        for _ in range(int(4 * minutes)):
            self.now += 15
            for node in nodes:
                for job in jobs:
                    idle = self.idle.setdefault(node, {})
                    idle[job] = idle.get(job, 0) + 15
            self.service.run_once(self.now, WALL + self.now)
        return list(self.calls)

    @property
    def notice(self) -> str:
        path = self.folder / NOTICES
        return path.read_text() if path.exists() else ""


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path, IdleLimit(30, "end"))


WARNING = (
    "notify {} the GPUs of this job have not been used for 15 minutes; limits.idle_gpu ends a job after 30 minutes"
)
END = ["update jobid={} admincomment=idle-gpu:end:30", "scancel {}"]


def ended(name: str) -> list[str]:
    return [call.format(name) for call in END]


def test_a_job_is_warned_at_half_of_the_limit_and_ended_at_the_limit(head: Head) -> None:
    assert head.after(14.5) == []
    assert head.after(1) == [WARNING.format(7)]
    assert head.after(0.25) == []
    assert head.notice == ("jobs that do not use their GPUs: 7; limits.idle_gpu ends a job after 30 minutes\n")
    assert head.after(14) == []
    assert head.after(0.25) == ended("7")
    # Slurm ends the job, and its nodes no longer report it.
    head.jobs.clear()
    head.idle.clear()
    assert head.after(0.5, jobs=()) == []
    assert head.notice == ""


def test_a_job_that_computes_is_warned_again_later(head: Head) -> None:
    head.after(20)
    head.idle.clear()
    assert head.after(0.5, jobs=()) == []
    assert head.after(14) == []
    assert head.after(1.5) == [WARNING.format(7)]


def test_a_job_is_idle_only_if_all_its_nodes_are(head: Head) -> None:
    head.jobs[7] = Job(nodes=2)
    assert head.after(60) == []
    # The shorter of both times counts.
    assert head.after(14.5, nodes=NODES) == []
    assert head.after(1, nodes=NODES) == [WARNING.format(7)]


def test_old_reports_and_those_of_an_earlier_start_are_ignored(head: Head) -> None:
    head.age = 200
    assert head.after(60) == []
    head.age = 0
    head.jobs[7] = Job(start=head.now)
    assert head.after(10) == []


@pytest.mark.parametrize("job", [Job(may_requeue=False), Job(is_batch=False)])
def test_a_job_is_requeued_or_ended_if_slurm_cannot_requeue_it(job: Job, tmp_path: Path) -> None:
    head = Head(tmp_path, IdleLimit(30, "requeue"), jobs={7: Job(), 8: job})
    assert len(head.after(29, jobs=(7, 8))) == 2
    assert head.after(1, jobs=(7, 8)) == [
        "update jobid=7 admincomment=idle-gpu:requeue:30",
        "requeue 7",
        "update jobid=8 admincomment=idle-gpu:end:30",
        "scancel 8",
    ]


@pytest.mark.parametrize(("action", "name"), [("requeue", "requeue 7_3"), ("end", "scancel 7_3")])
def test_only_the_task_of_an_array_ends_and_not_the_array(action: str, name: str, tmp_path: Path) -> None:
    # The last task that starts has the number of the array.
    head = Head(tmp_path, IdleLimit(30, action), jobs={7: Job(array="7_3"), 8: Job(array="7_1")})
    head.after(29)
    assert head.after(1) == [f"update jobid=7_3 admincomment=idle-gpu:{action}:30", name]


def test_components_of_heterogeneous_jobs_are_ignored(head: Head) -> None:
    head.jobs[7] = Job(het="6")
    assert head.after(60) == []


def test_a_warning_is_all_that_happens_with_the_action_warn(tmp_path: Path) -> None:
    head = Head(tmp_path, IdleLimit(30, "warn"))
    [warning] = head.after(120)
    assert warning.endswith("for 15 minutes; see limits.idle_gpu")
    assert head.notice == "jobs that do not use their GPUs: 7; see limits.idle_gpu\n"


def test_a_lowered_limit_ends_jobs_only_after_a_notice(head: Head) -> None:
    head.limit = replace(head.limit, minutes=600)
    head.restart()
    assert head.after(100) == []
    head.limit = replace(head.limit, minutes=30)
    head.restart()
    [notice] = head.after(4.5)
    assert notice.startswith("notify 7 ")
    assert head.after(0.75) == ended("7")


def test_a_failed_call_is_repeated(head: Head) -> None:
    head.after(29.5)
    head.answers = False
    assert head.after(1) == []
    head.answers = True
    assert head.after(0.25) == ended("7")
