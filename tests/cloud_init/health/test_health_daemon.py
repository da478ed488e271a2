"""Verdicts, and when the health daemon drains a node, resumes it and requeues its jobs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from health import daemon as daemon_module
from health.daemon import Daemon
from health.node import Check, Node, Outcome, Ran, failed, load_checks, passed, unknown
from health.slurm import SlurmNode, decide, may_return, parse
from health.verdicts import Ledger, load, save

from tests.cloud_init.health.health_site import BOOT, FAULTS, Site, healthy, use_gpudirect

CHECKS = load_checks()
DRAINING = [name for name, check in CHECKS.items() if check.severity != "note"]
DISK, XID = CHECKS["disk-full"], CHECKS["gpu-xid"]
FULL = failed("/ is full")
REASON = "TY:disk-full: / is full"
LINE = (
    "NodeName=n Arch=x86_64 State={state} ThreadsPerCore=1 SlurmdStartTime={started} "
    "Reason={reason} [root@2026-11-22T14:05:30] \n"
)


def report_state(site: Site, state: str) -> None:
    site.write("/var/lib/trainyard/status.json", json.dumps({"state": state, "boot_id": BOOT}))


class Cluster:
    def __init__(self, site: Site) -> None:
        self.site, self.state, self.reason, self.answers = site, "IDLE", "none", True
        self.started = 0
        """Number of times that slurmd has registered."""
        self.jobs: list[str] = []
        self.requeued: list[str] = []
        self.warned: list[str] = []
        site.node.run = self.run
        report_state(site, "ready")

    def run(self, argv: list[str], timeout: float) -> Ran:
        if argv == ["systemctl", "restart", "slurmd.service"]:
            self.register()
            return Ran(0)
        return self.answer(argv) if argv[0] in {"scontrol", "squeue", "scancel"} else self.site.run(argv, timeout)

    def register(self) -> None:
        """The effects of a registration (ReturnToService=1)."""
        self.started += 1
        self.state = self.state.replace("+NOT_RESPONDING", "")
        if self.reason == "Not responding":
            self.state, self.reason = "IDLE", "none"

    def answer(self, argv: list[str]) -> Ran:
        if not self.answers:
            return Ran(1, "Unable to contact slurm controller")
        if argv[-1] == "--format=%o":
            return Ran(0, "/shared/jobs/a-1/job.sbatch\n")
        if argv[0] == "squeue":
            return Ran(0, "".join(f"{job}\n" if " " in job else f"{job} {job} N/A\n" for job in self.jobs))
        if argv[1] == "requeue" or argv[0] == "scancel":
            (self.warned if argv[0] == "scancel" else self.requeued).append(argv[-1])
            return Ran(0)
        if argv[1] == "update":
            words = dict(word.split("=", 1) for word in argv[2:])
            self.state = "IDLE" if words["state"] == "resume" else "IDLE+DRAIN"
            self.reason = words.get("reason", "none")
            return Ran(0)
        return Ran(0, LINE.format(state=self.state, reason=self.reason, started=self.started))

    @property
    def drained(self) -> bool:
        return "DRAIN" in self.state


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(healthy(tmp_path))


def start(cluster: Cluster) -> Daemon:
    daemon = Daemon(cluster.site.node)
    daemon.checks = {name: replace(check, timeout=0.2) for name, check in daemon.checks.items()}
    return daemon


def rounds(daemon: Daemon, count: int) -> None:
    """Run all checks `count` times. The time of each run is simulated, so that all checks are due."""
    for _ in range(count):
        daemon.node.memo.pop("nvidia-smi", None)
        daemon.run_due(max(daemon.due.values()) + 1)
        daemon.settle()


@pytest.mark.parametrize("check", DRAINING)
def test_fault_drains_and_its_repair_resumes(check: str, tmp_path: Path) -> None:
    cluster = Cluster(healthy(tmp_path))
    if CHECKS[check].nodes == "gpudirect":
        use_gpudirect(cluster.site)
    daemon = start(cluster)
    rounds(daemon, 2)
    assert cluster.state == "IDLE"
    cluster.jobs = ["7", "9"]
    tools, (change, text) = dict(cluster.site.tools), FAULTS[check][0]
    change(cluster.site)
    rounds(daemon, CHECKS[check].fails)
    assert cluster.drained
    assert cluster.reason == f"TY:{check}: {text}"
    rounds(daemon, 2)
    # Only a fatal fault requeues jobs, and only once.
    assert cluster.requeued == (["7", "9"] if CHECKS[check].severity == "fatal" else [])
    cluster.site.hanging.clear()
    if check in {"gpu-xid", "rdma-flap"}:
        return  # Other tests check how these verdicts are cleared.
    daemon.node.events.clear()
    repaired = healthy(tmp_path / "repaired")
    report_state(repaired, "ready")
    cluster.site.tools, cluster.site.usage, cluster.site.offset, cluster.site.events = tools, {}, 0.0, "[]"
    daemon.node.root = repaired.root
    rounds(daemon, CHECKS[check].passes + 1)
    assert not cluster.drained


def test_jobs_are_warned_of_an_event_once_after_the_drain(cluster: Cluster) -> None:
    daemon = start(cluster)
    rounds(daemon, 2)
    cluster.jobs = ["7"]
    FAULTS["event"][0][0](cluster.site)
    cluster.answers = False
    rounds(daemon, 1)
    assert cluster.warned == []
    cluster.answers = True
    rounds(daemon, 3)
    assert cluster.reason == "TY:event: the cloud announces Preempt"
    assert (cluster.warned, cluster.requeued) == (["7"], [])


@pytest.mark.parametrize("fault", ["gpu-count", "event"])
def test_one_task_of_an_array_is_requeued_or_warned_without_the_others(cluster: Cluster, fault: str) -> None:
    daemon = start(cluster)
    rounds(daemon, 2)
    # The first task has the array's number.
    cluster.jobs = ["7 7 3", "8 7 1", "9"]
    FAULTS[fault][0][0](cluster.site)
    rounds(daemon, CHECKS[fault].fails + 1)
    assert cluster.requeued + cluster.warned == ["7_3", "7_1", "9"]


def test_drain_and_requeue_are_repeated_if_slurm_does_not_answer(cluster: Cluster) -> None:
    daemon = start(cluster)
    cluster.jobs, cluster.answers = ["7"], False
    FAULTS["gpu-count"][0][0](cluster.site)
    rounds(daemon, CHECKS["gpu-count"].fails)
    assert not (daemon.cache / "drained").exists()
    assert cluster.requeued == []
    cluster.answers = True
    daemon.settle()
    assert cluster.drained
    assert (daemon.cache / "drained").exists()
    assert cluster.requeued == ["7"]


def test_verdict_of_an_earlier_daemon_requeues_no_jobs(cluster: Cluster) -> None:
    FAULTS["gpu-count"][0][0](cluster.site)
    rounds(start(cluster), CHECKS["gpu-count"].fails)
    cluster.jobs = ["8"]
    rounds(start(cluster), CHECKS["gpu-count"].fails)
    assert cluster.drained
    assert cluster.requeued == []


def test_node_registers_again_after_a_fault_of_munge(cluster: Cluster) -> None:
    daemon = start(cluster)
    cluster.answers = False
    FAULTS["munge"][0][0](cluster.site)
    rounds(daemon, 3)
    cluster.state, cluster.reason = "DOWN+NOT_RESPONDING", "Not responding"
    rounds(daemon, 2)
    assert cluster.reason == "Not responding"
    cluster.answers, daemon.node.root = True, healthy(daemon.node.root / "repaired").root
    report_state(Site(daemon.node.root), "ready")
    rounds(daemon, CHECKS["munge"].passes)
    assert (cluster.state, cluster.reason) == ("IDLE", "none")


@pytest.mark.parametrize(
    ("state", "reason", "returns"),
    [
        ("DOWN+NOT_RESPONDING", "Not responding", True),
        ("DOWN+NOT_RESPONDING", "TY:gone: no answer for 15 s", True),
        ("DOWN", "TY:gone: no answer for 15 s", True),
        ("IDLE+DRAIN+NOT_RESPONDING", "TY:slurmd: the machine answers, but its slurmd does not", True),
        ("IDLE+NOT_RESPONDING", "none", True),
        ("DOWN", "bad cable", False),
        ("DOWN", "Node unexpectedly rebooted", False),
        ("DOWN", "TY:roll", False),
    ],
)
def test_only_a_frozen_node_registers_and_returns(state: str, reason: str, returns: bool, cluster: Cluster) -> None:
    daemon = start(cluster)
    rounds(daemon, 4)
    cluster.state, cluster.reason = state, reason
    daemon.settle()
    expected = ("IDLE", "none", 1) if returns else (state, reason, 0)
    assert (cluster.state, cluster.reason, cluster.started) == expected


def test_node_without_a_registration_is_not_resumed(cluster: Cluster) -> None:
    daemon = start(cluster)
    rounds(daemon, 4)
    waits: list[float] = []
    daemon.node.sleep = waits.append
    cluster.register = lambda: None  # type: ignore[method-assign]
    cluster.state, cluster.reason = "DOWN+NOT_RESPONDING", "TY:gone: no answer for 15 s"
    daemon.settle()
    assert cluster.state == "DOWN+NOT_RESPONDING"
    assert sum(waits) == 15


@pytest.mark.parametrize(("state", "reason"), [("DOWN", "TY:gone: no answer for 15 s"), ("IDLE+DRAIN", REASON)])
def test_node_returns_only_after_the_bootstrap(state: str, reason: str, cluster: Cluster) -> None:
    cluster.state, cluster.reason = state, reason
    report_state(cluster.site, "waiting")
    daemon = start(cluster)
    rounds(daemon, 5)
    assert (cluster.state, cluster.started) == (state, 0)
    report_state(cluster.site, "ready")
    daemon.settle()
    assert cluster.state == "IDLE"


def test_new_daemon_needs_proof_before_it_resumes(cluster: Cluster) -> None:
    cluster.state, cluster.reason = "IDLE+DRAIN", REASON
    FAULTS["disk-full"][0][0](cluster.site)
    daemon = start(cluster)
    rounds(daemon, 1)
    assert cluster.drained, "the ledger was lost, but the fault is still there"
    cluster.site.usage.clear()
    rounds(daemon, DISK.passes)
    assert not cluster.drained


def test_verdicts_survive_a_restart_of_the_daemon(cluster: Cluster) -> None:
    daemon = start(cluster)
    FAULTS["gpu-xid"][0][0](cluster.site)
    rounds(daemon, 1)
    daemon.node.events.clear()
    began = daemon.ledger.verdicts["gpu-xid"].since
    time.sleep(0.1)
    again = start(cluster)
    rounds(again, 5)
    assert cluster.drained
    assert (again.cache / "verdict").stat().st_mtime == pytest.approx(began, abs=0.01), "a failed job reads the age"
    again.read_events("clear gpu-xid\nclear unknown\nevent leftover-processes 1 2\n")
    rounds(again, 2)
    assert cluster.reason == "none"
    assert again.node.events == {}, "the processes 1 and 2 do not exist on this node"


def test_clear_ends_a_verdict_that_a_running_check_saw(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = start(cluster)
    FAULTS["gpu-xid"][0][0](cluster.site)
    rounds(daemon, 1)
    assert cluster.drained
    during = ["clear gpu-xid\n"]

    original = daemon_module.run_check

    def run_check(node: Node, check: Check) -> Outcome:
        outcome = original(node, check)
        if check.id == "gpu-xid" and during:
            daemon.read_events(during.pop())
        return outcome

    monkeypatch.setattr(daemon_module, "run_check", run_check)
    rounds(daemon, 1)
    assert daemon.ledger.verdicts == {}
    rounds(daemon, CHECKS["gpu-xid"].passes)
    assert cluster.reason == "none"


class Ended(Exception):
    pass


def test_xid_drains_within_a_second(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe replaces the kernel log."""
    log = cluster.site.root / "dev/kmsg"
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    writer = os.open(log, os.O_RDWR)
    daemon = start(cluster)
    ended = threading.Event()

    def until_the_end(function: Callable[..., None], *arguments: Any) -> None:
        if ended.is_set():
            raise Ended
        function(*arguments)

    def loop(function: Callable[[], None]) -> None:
        with suppress(Ended):
            function()

    # A thread that continued after the test would fail during a later test.
    monkeypatch.setattr(daemon, "settle", partial(until_the_end, daemon.settle))
    monkeypatch.setattr(daemon, "run_due", partial(until_the_end, daemon.run_due))
    monkeypatch.setattr(daemon, "_check_for_ever", partial(loop, daemon._check_for_ever))
    others = set(threading.enumerate())
    threading.Thread(target=loop, args=(daemon.run,), daemon=True).start()
    deadline = time.monotonic() + 20
    while not (daemon.cache / "results.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.write(writer, b"4,811,5140900,-;NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n")
    begin = time.monotonic()
    while not cluster.drained and time.monotonic() < deadline:
        time.sleep(0.01)
    assert time.monotonic() - begin < 1
    assert cluster.reason == "TY:gpu-xid: Xid 79, GPU has fallen off the bus"
    assert (daemon.cache / "verdict").read_text() == f"fatal {cluster.reason}\n"
    ended.set()
    daemon.kicked.set()
    os.write(writer, b"4,812,5140901,-;The daemon reads this line and continues with settle.\n")
    # A thread that is being started is listed, but cannot be joined yet.
    deadline = time.monotonic() + 20
    while set(threading.enumerate()) - others and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not set(threading.enumerate()) - others
    os.close(writer)


def test_every_xid_is_counted_once(cluster: Cluster) -> None:
    """Also by a new daemon, which reads the log of this boot again. Lines with a user's text do not count."""
    gpu = "NVRM: Xid (PCI:0000:3B:00): "
    lines = [
        f"4,10,1,-;{gpu}31, pid=1, name=python, Ch 00000008\n",
        f"4,11,2,-;{gpu}31, pid=2, name=python, Ch 00000008\n",
        f"6,12,3,-;{gpu}63, Row remapper\n",
        f"12,13,4,-;{gpu}31, written to /dev/kmsg\n",
        f"4,14,5,c;{gpu}31, the rest of a line\n",
        f"4,15,6,-;mount: {gpu}31\n",
        "4,16,7,-;NVRM: Xid (PCI:00000001:00:00.0): 79, GPU has fallen off the bus.\n",
    ]

    def read(daemon: Daemon, lines: list[str]) -> None:
        for line in lines:
            reader, writer = os.pipe2(os.O_NONBLOCK)
            os.write(writer, line.encode())
            daemon.read_log(reader)
            os.close(reader)
            os.close(writer)

    daemon = start(cluster)
    read(daemon, lines[:2])
    daemon.saved = float("-inf")
    daemon.publish()
    # The daemon ends without storing these records.
    read(daemon, lines[2:5])
    again = start(cluster)
    read(again, lines)
    again.publish()
    published = json.loads((again.cache / "results.json").read_text())["xids"]
    assert published == {"0000:3b:00": {"31": 2, "63": 1}, "0001:00:00": {"79": 1}}
    assert load(cluster.site.root / "var/lib/trainyard/health.json", "another boot").xids == {}


def reason(ledger: Ledger) -> str | None:
    return ledger.worst.reason if ledger.worst else None


def record(ledger: Ledger, check: Check, *outcomes: object) -> list[bool]:
    return [ledger.record(check, outcome, 1.0) for outcome in outcomes]  # type: ignore[arg-type]


def test_verdict_needs_consecutive_failures() -> None:
    ledger = Ledger(BOOT)
    assert record(ledger, DISK, FULL, passed(), FULL, unknown("slow"), FULL) == [False] * 5
    assert reason(ledger) is None
    assert record(ledger, DISK, FULL) == [True]
    assert reason(ledger) == REASON


def test_verdict_ends_after_consecutive_passes() -> None:
    ledger = Ledger(BOOT)
    record(ledger, DISK, FULL, FULL)
    assert record(ledger, DISK, passed(), unknown("slow"), passed(), passed()) == [False, False, False, True]
    assert ledger.worst is None
    assert [row["event"] for row in ledger.history] == ["begin", "end"]


def test_verdict_of_an_xid_ends_after_a_reboot(tmp_path: Path) -> None:
    ledger = Ledger(BOOT)
    assert record(ledger, XID, failed("Xid 79"), passed(), passed(), passed()) == [True, False, False, False]
    assert save(tmp_path / "ledger", ledger)
    later = load(tmp_path / "ledger", "another boot")
    assert record(later, XID, passed(), passed()) == [False, True]


def test_most_severe_verdict_gives_the_reason() -> None:
    ledger = Ledger(BOOT)
    record(ledger, CHECKS["rdma-errors"], failed("many"))
    assert reason(ledger) is None, "a note does not drain the node"
    record(ledger, DISK, FULL, FULL)
    record(ledger, XID, failed("Xid 79"))
    assert reason(ledger) == "TY:gpu-xid: Xid 79"
    ledger.clear("gpu-xid", 2.0)
    assert reason(ledger) == REASON


def test_damaged_ledger_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("{")
    assert load(tmp_path / "ledger", BOOT).verdicts == {}
    assert not save(Path("/proc/none/ledger"), Ledger(BOOT))


@pytest.mark.parametrize(
    ("state", "reason", "wanted", "action"),
    [
        ("IDLE", "none", REASON, "drain"),
        ("MIXED*", "none", REASON, "drain"),
        ("IDLE+DRAIN", REASON, REASON, None),
        ("IDLE", REASON, REASON, "drain"),  # Slurm has cleared the drain.
        ("IDLE+DRAIN", "TY:munge: munged is not running", REASON, "drain"),
        ("IDLE+DRAIN", "bad cable", REASON, None),
        ("IDLE+DRAIN", "TY:roll", REASON, None),
        ("DOWN", "Node unexpectedly rebooted", REASON, None),
        ("IDLE", "none", None, None),
        ("IDLE+DRAIN", REASON, None, "resume"),
        ("DOWN+DRAIN", REASON, None, "resume"),
        ("IDLE+DRAIN", "TY:munge: munged is not running", None, None),  # The munge check has not passed.
        ("IDLE+DRAIN", "bad cable", None, None),
        ("IDLE+DRAIN", "TY:roll", None, None),
        ("IDLE+DRAIN", "TY:disk-full", None, None),
        ("DOWN", "Node unexpectedly rebooted", None, None),
    ],
)
def test_only_own_reasons_are_changed(state: str, reason: str, wanted: str | None, action: str | None) -> None:
    found = parse(LINE.format(state=state, reason=reason, started=1))
    assert found is not None
    assert found.reason == reason
    assert decide(found, wanted, CHECKS, {"disk-full"}) == action


@pytest.mark.parametrize(
    ("state", "reason", "returned", "returned_if_new"),
    [
        ("DOWN", "Node unexpectedly rebooted", True, True),
        ("DOWN*", "Not responding", True, True),
        ("DOWN", "TY:gone: no answer for 15 s", True, True),
        ("DOWN", "ResumeTimeout reached", True, True),
        ("DOWN", "TY:power: the machine cannot start: no capacity", True, True),
        ("IDLE+DRAIN", "TY:roll", False, True),
        ("IDLE+DRAIN", "TY:bandwidth: alone: 3 GB/s", False, True),
        ("IDLE+DRAIN", "TY:disk-full: / is full", False, False),
        ("DOWN+DRAIN", "bad cable", False, False),
        ("IDLE", "", False, False),
    ],
)
def test_a_booted_node_returns_for_some_reasons(state: str, reason: str, returned: bool, returned_if_new: bool) -> None:
    node = SlurmNode(state, reason)
    assert (may_return(node, is_new=False), may_return(node, is_new=True)) == (returned, returned_if_new)


def test_line_without_a_state_or_a_reason_is_parsed() -> None:
    assert parse("slurm_load_node error: Unable to contact slurm controller") is None
    assert parse("NodeName=n State=IDLE ThreadsPerCore=1\n") == SlurmNode("IDLE", "")
