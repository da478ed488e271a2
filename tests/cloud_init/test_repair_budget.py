"""The monthly cost limit, with a fake clock and a fake scontrol in Slurm 24.11's format."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repair.budget import NOTICE_SECONDS, SPENT, Budget, notice, spent
from repair.power import ON, Elastic
from repair.service import Group, Service, Site

from tests.cloud_init.test_repair_partitions import Partitions
from tests.yard.conftest import outputs
from trainyard.faults import CLOSED, NOTICES, ON_TIMES
from trainyard.on_times import month_bounds, month_of, parse_on_times
from trainyard.outputs import Prices
from yard.run.cost import costs, total

NODES = {"yard-a-0": "10.0.0.1", "yard-a-1": "10.0.0.2", "yard-b-0": "10.0.0.3"}
PRICES = {"head": 1.0, "yard-a": 1.0, "yard-b": 1.0}
"""With all machines on, the cluster costs four dollars an hour."""
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
HOUR = 3600.0
CLUSTER = outputs(2, "fake", 1, None)
LIMIT = Budget(40, "finish", PRICES)
FIX = "Fix: wait, or raise the limit in the stack file and run `pulumi up`"


@dataclass
class Slurm(Partitions):
    """Partitions, idle nodes, and jobs: a mapping from number to partition, state and whether it is a batch job."""

    jobs: dict[str, tuple[str, str, bool]] = field(default_factory=dict)

    def __call__(self, *arguments: str) -> str | None:
        shown = {
            "-o show node": "".join(f"NodeName={name} State=IDLE BootTime=x\n" for name in NODES),
            "-o show reservation": "",
        }
        if (text := shown.get(" ".join(arguments))) is not None:
            return text
        match arguments:
            case ("-o", "show", "job", job):
                return self._line(job)
            case ("requeue", job):
                self.calls.append(f"requeue {job}")
                partition, state, is_batch = self.jobs[job]
                assert (state, is_batch) == ("RUNNING", True), job
                if self.fails:
                    return None
                self.jobs[job] = (partition, "PENDING", True)
            case ("update", job, "timelimit=1"):
                self.calls.append(f"end {job}")
                del self.jobs[job.removeprefix("jobid=")]
            case ("notify", *_) | ("update", _, "state=power_down"):
                self.calls.append(" ".join(arguments[:2]))
            case _:
                return super().__call__(*arguments)
        return ""

    def _line(self, job: str) -> str:
        _, state, is_batch = self.jobs[job]
        return f"JobId={job} JobName=x JobState={state} Reason=None Requeue=1 Restarts=0 BatchFlag={int(is_batch)}\n"

    def queue(self, *arguments: str) -> str:
        """Answer as squeue does."""
        assert arguments[:6] == ("-h", "-a", "-t", "R,CF,S", "-o", "%A %F %K %P")
        numbers = arguments[7:] or tuple(self.jobs)
        rows = ((number, *self.jobs[number]) for number in numbers)
        running = ((number, partition) for number, partition, state, _ in rows if state == "RUNNING")
        return "".join(f"{self._fields(number)} {partition}\n" for number, partition in running)

    def _fields(self, name: str) -> str:
        """Return the number, the array and the task of a job. The last task of an array has the array's number."""
        array, _, task = name.partition("_")
        return f"{array} {array} {task or 'N/A'}"


class Machines:
    """Machines that are always on."""

    def states(self, names: Collection[str]) -> Mapping[str, str]:
        return dict.fromkeys(names, ON)

    def start(self, name: str) -> None:
        raise AssertionError(name)

    stop = start

    def failures(self) -> Mapping[str, str]:
        return {}


@dataclass
class HeadNode:
    """The head with its service, which has an elastic group a and another group b."""

    folder: Path
    budget: Budget | None = LIMIT
    slurm: Slurm = field(default_factory=Slurm)
    service: Service = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / ON_TIMES).parent.mkdir()
        self.restart()

    def restart(self) -> None:
        addresses = list(NODES.items())
        groups = (
            Group("a", 0, dict(addresses[:2]), Elastic(tuple(NODES)[:2], 1, 60)),
            Group("b", 0, dict(addresses[2:])),
        )
        site = Site(15, groups, budget=self.budget)
        self.service = Service(site, self.folder, self.slurm, self.slurm.queue, answering=set, power=Machines())

    def at(self, wall: float) -> str:
        """Run the service at this time. Return the notices."""
        self.service.run_once(wall, wall)
        path = self.folder / NOTICES
        return path.read_text() if path.exists() else ""


@pytest.fixture
def head(tmp_path: Path) -> HeadNode:
    head = HeadNode(tmp_path)
    assert head.at(NOVEMBER) == ""
    return head


CHANGES = st.lists(
    st.tuples(st.integers(0, 70 * 24 * 3600), st.sampled_from(["head", *NODES, "yard-a-7"]), st.booleans()), max_size=30
)


@given(CHANGES, st.integers(0, 70 * 24 * 3600))
def test_the_head_and_yard_cost_agree(changes: list[tuple[int, str, bool]], now: int) -> None:
    start = datetime(2026, 9, 20, tzinfo=UTC).timestamp()
    rows = sorted((start + min(when, now), name, "on" if is_on else "off") for when, name, is_on in changes)
    record = "".join(f"{when:.0f} {name} {state}\n" for when, name, state in rows)
    prices = Prices(head=1.5, nodes={"a": 98.32, "b": 3.67}, services=0.1909)
    nodes = tuple(replace(CLUSTER.nodes[0], name=name, group=name[5]) for name in NODES)
    cluster = replace(CLUSTER, nodes=nodes, prices=prices)
    wall = start + now
    shown = costs(parse_on_times(record, wall), cluster, month_bounds(month_of(wall))[0], wall)
    found = spent(record, {"head": 1.5, "services": 0.1909, "yard-a": 98.32, "yard-b": 3.67}, wall)
    # `yard cost` rounds each row to cents.
    assert found == pytest.approx(total(shown), abs=0.005 * len(shown) + 1e-6)


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (799.9, ""),
        (812.3, "$812 of the $1,000 of limits.max_usd_per_month are spent (2026-11); at 100 % no new jobs start"),
        (
            1000,
            "$1,000 of the $1,000 of limits.max_usd_per_month are spent (2026-11), so no new jobs start before "
            f"2026-12-01 (UTC). {FIX}",
        ),
    ],
)
def test_users_see_how_much_is_spent(usd: float, text: str) -> None:
    assert notice(usd, 1000, NOVEMBER + HOUR) == text


def test_jobs_start_until_the_limit_and_again_in_the_next_month(head: HeadNode) -> None:
    assert head.at(NOVEMBER + 7.9 * HOUR) == ""
    assert head.at(NOVEMBER + 8 * HOUR).startswith("$32 of the $40")
    assert (head.folder / NOTICES).stat().st_mode & 0o777 == 0o644
    assert (head.slurm.states, head.slurm.calls) == ({"a": "UP", "b": "UP"}, [])
    assert FIX in head.at(NOVEMBER + 10 * HOUR)
    assert head.slurm.states == {"a": "DOWN", "b": "DOWN"}
    # The minimum of one machine and the idle time of the group do not matter.
    assert {"update nodename=yard-a-0", "update nodename=yard-a-1"} < set(head.slurm.calls)
    assert json.loads((head.folder / CLOSED).read_text())["a"] == [SPENT, "UP"]
    head.restart()
    assert FIX in head.at(DECEMBER - 60)
    assert head.at(DECEMBER) == ""
    assert head.slurm.states == {"a": "UP", "b": "UP"}


@pytest.mark.parametrize("budget", [replace(LIMIT, usd_per_month=1000), None])
def test_a_raised_or_removed_limit_applies_at_once(head: HeadNode, budget: Budget | None) -> None:
    head.slurm.states["b"] = "DOWN"
    head.at(NOVEMBER + 10 * HOUR)
    assert head.slurm.states == {"a": "DOWN", "b": "DOWN"}
    head.budget = budget
    head.restart()
    assert head.at(NOVEMBER + 10 * HOUR + 3) == ""
    assert head.slurm.states == {"a": "UP", "b": "DOWN"}


def test_running_jobs_continue_unless_the_stack_file_requeues_them(head: HeadNode) -> None:
    head.slurm.jobs = {"7": ("a", "RUNNING", True)}
    head.at(NOVEMBER + 10 * HOUR)
    head.at(NOVEMBER + 20 * HOUR)
    assert not any(call.endswith(" 7") for call in head.slurm.calls)


def test_jobs_in_elastic_groups_are_requeued_or_ended_after_a_notice(head: HeadNode) -> None:
    head.budget = replace(LIMIT, when_spent="requeue")
    head.restart()
    head.slurm.jobs = {
        "7": ("a", "RUNNING", True),
        "8": ("a", "RUNNING", False),
        "9": ("a", "PENDING", False),
        "10": ("b", "RUNNING", True),
    }
    spent_at = NOVEMBER + 10 * HOUR
    head.at(spent_at)
    head.at(spent_at + 60)
    head.at(spent_at + NOTICE_SECONDS - 1)
    ended = [call for call in head.slurm.calls if "update" not in call]
    assert ended == ["notify 7", "notify 8"]
    # A call that fails is repeated. It does not shorten the time limit of a job that can be requeued.
    head.slurm.fails = True
    head.at(spent_at + NOTICE_SECONDS + 60)
    head.slurm.fails = False
    head.at(spent_at + NOTICE_SECONDS + 120)
    assert [call for call in head.slurm.calls if "update" not in call][2:] == [
        "requeue 7",
        "end jobid=8",
        "requeue 7",
    ]
    assert set(head.slurm.jobs) == {"7", "9", "10"}


def test_one_task_of_an_array_is_requeued_without_the_others(head: HeadNode) -> None:
    head.budget = replace(LIMIT, when_spent="requeue")
    head.restart()
    # The task has the array's number 7, by which scontrol would requeue also the task in group b.
    head.slurm.jobs = {"7_3": ("a", "RUNNING", True), "7_4": ("b", "RUNNING", True)}
    spent_at = NOVEMBER + 10 * HOUR
    head.at(spent_at)
    head.at(spent_at + NOTICE_SECONDS + 60)
    assert [call for call in head.slurm.calls if "update" not in call] == ["notify 7_3", "requeue 7_3"]
