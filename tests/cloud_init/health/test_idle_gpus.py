"""How a node measures that jobs do not use their GPUs, with a fake nvidia-smi and fake commands of Slurm."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from health.idle import IdleGpus
from health.node import Node, Ran

from trainyard.idle_gpus import FOLDER, parse_reports

WALL = 1_764_000_000.0
# The minor number of a GPU's device file differs from its index in nvidia-smi.
ADDRESSES = {"1": "0001:00:00.0", "0": "0002:00:00.0"}


@dataclass
class Worker:
    """A node with two GPUs and a limit of 30 minutes. `used`: utilization by minor number."""

    root: Path
    used: dict[str, str] = field(default_factory=lambda: {"0": "0", "1": "0"})
    running: list[str] = field(default_factory=lambda: ["7"])
    answers: bool = True
    extra: str = ""
    calls: list[str] = field(default_factory=list)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.node = Node(root=self.root, run=self.run)
        self.limit(1800)
        for minor, address in ADDRESSES.items():
            file = self.root / "proc/driver/nvidia/gpus" / address / "information"
            file.parent.mkdir(parents=True)
            file.write_text(f"Model: \t\t NVIDIA H100\nBus Location: \t {address}\nDevice Minor: \t {minor}\n")
        (self.root / FOLDER.lstrip("/")).mkdir(parents=True)
        self.idle = IdleGpus(self.node)

    def limit(self, seconds: int | None) -> None:
        file = self.root / "etc/trainyard/node.env"
        file.parent.mkdir(parents=True, exist_ok=True)
        line = f"TRAINYARD_IDLE_GPU_SECONDS={seconds}\n" if seconds else ""
        file.write_text(f"TRAINYARD_NODE=yard-gpu-0\n{line}")
        self.idle = IdleGpus(self.node)

    def start(self, job: str, gpus: str) -> None:
        """Do what the prolog does."""
        file = self.root / FOLDER.lstrip("/") / job
        file.write_text(f"{gpus}\n")
        os.utime(file, ns=(0, int(self.now * 1e9)))

    def run(self, argv: list[str], timeout: float) -> Ran:
        self.calls.append(argv[0])
        if argv[0] == "nvidia-smi":
            return Ran(0, "".join(f"0000{ADDRESSES[minor]}, {used}\n" for minor, used in self.used.items()))
        if not self.answers:
            return Ran(1, "Unable to contact slurm controller")
        if argv[0] == "squeue":
            return Ran(0, "".join(f"{job}\n" for job in self.running))
        assert argv[:3] == ["scontrol", "update", "nodename=yard-gpu-0"]
        self.extra = argv[3].removeprefix("extra=")
        return Ran(0)

    def wait(self, minutes: float) -> dict[int, list[int]]:
        """Run the daemon's loops for this time. Return what the head reads in Slurm."""
        for _ in range(int(6 * minutes)):
            self.now += 10
            self.idle.sample(self.now)
            self.idle.report(self.now, WALL + self.now)
        shown = f"NodeName=yard-gpu-0 State=MIXED Comment=x Extra={self.extra} ReservationName=x\n"
        return parse_reports(shown, WALL + self.now)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_a_job_is_reported_after_half_of_the_limit(worker: Worker) -> None:
    worker.start("7", "0,1")
    assert worker.wait(14.5) == {}
    assert worker.wait(1).keys() == {7}
    [seconds] = worker.wait(14.5)[7]
    assert 1700 < seconds <= 1800
    assert worker.calls.count("scontrol") <= 17
    assert worker.calls.count("nvidia-smi") <= 1 + 31 * 3


def test_a_kernel_on_one_gpu_of_the_job_ends_the_idle_time(worker: Worker) -> None:
    worker.start("7", "0,1")
    worker.start("8", "1")
    worker.running.append("8")
    worker.wait(20)
    worker.used["0"] = "3"
    assert worker.wait(1).keys() == {8}
    worker.used["0"] = "0"
    assert worker.wait(14).keys() == {8}
    assert worker.wait(2).keys() == {7, 8}
    worker.used["1"] = "3"
    assert worker.wait(1) == {}
    assert worker.extra == ""


@pytest.mark.parametrize("used", [{"0": "[N/A]", "1": "0"}, {"1": "0"}, {}])
def test_a_gpu_without_a_measurement_counts_as_used(used: dict[str, str], worker: Worker) -> None:
    worker.start("7", "0,1")
    worker.used = used
    assert worker.wait(40) == {}


def test_a_requeued_job_starts_with_no_idle_time(worker: Worker) -> None:
    worker.start("7", "0")
    worker.wait(29)
    worker.start("7", "0")
    assert worker.wait(14) == {}


def test_files_of_ended_jobs_are_removed(worker: Worker) -> None:
    worker.start("6", "0")
    worker.start("7", "1")
    (worker.root / FOLDER.lstrip("/") / "note").write_text("0\n")
    assert worker.wait(20).keys() == {7}
    assert sorted(file.name for file in (worker.root / FOLDER.lstrip("/")).iterdir()) == ["7", "note"]


def test_a_report_is_repeated_until_slurm_answers_and_expires(worker: Worker) -> None:
    worker.start("7", "0")
    worker.answers = False
    assert worker.wait(16) == {}
    worker.answers = True
    assert worker.wait(0.5).keys() == {7}
    worker.answers = False
    assert worker.wait(2.5).keys() == {7}
    assert worker.wait(2) == {}, "the daemon can no longer report that the job uses its GPUs"


@pytest.mark.parametrize(("seconds", "gpus"), [(None, "0"), (1800, None), (1800, "0;1")])
def test_nothing_runs_without_a_limit_or_a_job(seconds: int | None, gpus: str | None, worker: Worker) -> None:
    worker.limit(seconds)
    if gpus is not None:
        worker.start("7", gpus)
    assert worker.wait(40) == {}
    assert worker.calls == []


def test_the_daemon_itself_needs_less_than_a_tenth_of_a_percent(worker: Worker) -> None:
    for job in range(8):
        worker.start(str(job), str(job % 2))
        worker.running.append(str(job))
    started = time.process_time()
    worker.wait(60)
    assert time.process_time() - started < 3.6
