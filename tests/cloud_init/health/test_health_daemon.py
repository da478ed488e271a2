"""The times at which the health daemon drains a node, resumes it and requeues its jobs."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from health import daemon as daemon_module
from health.daemon import Daemon
from health.node import Check, Node, Outcome, Ran, load_checks

from tests.cloud_init.health.health_site import BOOT, FAULTS, Site, healthy, use_gpudirect

CHECKS = load_checks()
DISK, XID = CHECKS["disk-full"], CHECKS["gpu-xid"]
REASON = "TY:disk-full: / is full"
LINE = (
    "NodeName=n Arch=x86_64 State={state} ThreadsPerCore=1 SlurmdStartTime={started} "
    "Reason={reason} [root@2026-11-22T14:05:30] \n"
)


def report_state(site: Site, state: str) -> None:
    """Write the state of the bootstrap."""
    site.write("/var/lib/trainyard/status.json", json.dumps({"state": state, "boot_id": BOOT}))


class Cluster:
    """A node and slurmctld."""

    def __init__(self, site: Site) -> None:
        self.site, self.state, self.reason, self.answers = site, "IDLE", "none", True
        self.started = 0
        """Number of times that slurmd has registered."""
        self.asked = 0
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
        """Return the result of a Slurm command."""
        if not self.answers:
            return Ran(1, "Unable to contact slurm controller")
        if argv[0] == "squeue":
            return Ran(0, "".join(f"{job}\n" for job in self.jobs))
        if argv[1] == "requeue" or argv[0] == "scancel":
            (self.warned if argv[0] == "scancel" else self.requeued).append(argv[-1])
            return Ran(0)
        if argv[1] == "update":
            words = dict(word.split("=", 1) for word in argv[2:])
            self.state = "IDLE" if words["state"] == "resume" else "IDLE+DRAIN"
            self.reason = words.get("reason", "none")
            return Ran(0)
        self.asked += 1
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


def cluster_for(check: str, folder: Path) -> Cluster:
    """Return a healthy cluster with the fabric that the check needs."""
    cluster = Cluster(healthy(folder))
    if CHECKS[check].nodes == "gpudirect":
        use_gpudirect(cluster.site)
    return cluster


@pytest.mark.parametrize("check", [name for name, check in CHECKS.items() if check.severity != "note"])
def test_each_fault_drains_and_its_repair_resumes(check: str, tmp_path: Path) -> None:
    cluster = cluster_for(check, tmp_path)
    daemon = start(cluster)
    rounds(daemon, 2)
    assert cluster.state == "IDLE"
    tools, row = dict(cluster.site.tools), FAULTS[check][0]
    row[0](cluster.site)
    rounds(daemon, CHECKS[check].fails)
    assert cluster.drained
    assert cluster.reason == f"TY:{check}: {row[1]}"
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


@pytest.mark.parametrize("check", [name for name, check in CHECKS.items() if check.severity != "note"])
def test_only_fatal_faults_requeue_jobs_once(check: str, tmp_path: Path) -> None:
    cluster = cluster_for(check, tmp_path)
    daemon = start(cluster)
    rounds(daemon, 2)
    cluster.jobs = ["7", "9"]
    FAULTS[check][0][0](cluster.site)
    rounds(daemon, CHECKS[check].fails + 2)
    assert cluster.drained
    assert cluster.requeued == (["7", "9"] if CHECKS[check].severity == "fatal" else [])


def test_jobs_are_warned_of_an_event_once_after_the_drain(cluster: Cluster) -> None:
    daemon = start(cluster)
    rounds(daemon, 2)
    cluster.jobs = ["7 /shared/jobs/a-1/job.sbatch"]
    FAULTS["event"][0][0](cluster.site)
    cluster.answers = False
    rounds(daemon, 1)
    assert cluster.warned == []
    cluster.answers = True
    rounds(daemon, 3)
    assert cluster.reason == "TY:event: the cloud announces Preempt"
    assert (cluster.warned, cluster.requeued) == (["7"], [])


def test_requeue_is_repeated_if_slurm_does_not_answer(cluster: Cluster) -> None:
    daemon = start(cluster)
    cluster.jobs, cluster.answers = ["7"], False
    FAULTS["gpu-count"][0][0](cluster.site)
    rounds(daemon, CHECKS["gpu-count"].fails)
    assert cluster.requeued == []
    cluster.answers = True
    rounds(daemon, 1)
    assert cluster.requeued == ["7"]


def test_verdict_of_an_earlier_daemon_requeues_no_jobs(cluster: Cluster) -> None:
    FAULTS["gpu-count"][0][0](cluster.site)
    rounds(start(cluster), CHECKS["gpu-count"].fails)
    cluster.jobs = ["8"]
    rounds(start(cluster), CHECKS["gpu-count"].fails)
    assert cluster.drained
    assert cluster.requeued == []


def test_healthy_node_runs_one_command_per_look(cluster: Cluster) -> None:
    daemon = start(cluster)
    rounds(daemon, 1)
    cluster.asked = 0
    daemon.settle()
    assert (cluster.asked, cluster.state, cluster.started) == (1, "IDLE", 0)


def test_drain_that_slurm_cleared_is_applied_again(cluster: Cluster) -> None:
    daemon = start(cluster)
    FAULTS["disk-full"][0][0](cluster.site)
    rounds(daemon, 2)
    cluster.state = "IDLE"
    daemon.settle()
    assert cluster.drained


def test_slurm_that_does_not_answer_is_asked_again(cluster: Cluster) -> None:
    daemon = start(cluster)
    cluster.answers = False
    FAULTS["disk-full"][0][0](cluster.site)
    rounds(daemon, 3)
    assert not (daemon.cache / "drained").exists()
    cluster.answers = True
    daemon.settle()
    assert cluster.drained
    assert (daemon.cache / "drained").exists()


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
    ("state", "reason"),
    [
        ("DOWN+NOT_RESPONDING", "Not responding"),
        ("DOWN+NOT_RESPONDING", "TY:gone: no answer for 15 s"),
        ("DOWN", "TY:gone: no answer for 15 s"),
        ("IDLE+DRAIN+NOT_RESPONDING", "TY:slurmd: the machine answers, but its slurmd does not"),
        ("IDLE+NOT_RESPONDING", "none"),
    ],
)
def test_frozen_node_registers_and_returns(state: str, reason: str, cluster: Cluster) -> None:
    daemon = start(cluster)
    rounds(daemon, 4)
    cluster.state, cluster.reason = state, reason
    daemon.settle()
    assert (cluster.state, cluster.reason, cluster.started) == ("IDLE", "none", 1)


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


@pytest.mark.parametrize("reason", ["bad cable", "Node unexpectedly rebooted", "TY:roll"])
def test_node_down_for_another_reason_stays_down(reason: str, cluster: Cluster) -> None:
    daemon = start(cluster)
    rounds(daemon, 4)
    cluster.state, cluster.reason = "DOWN", reason
    daemon.settle()
    assert (cluster.state, cluster.reason, cluster.started) == ("DOWN", reason, 0)


def test_lost_node_stays_down_during_the_bootstrap(cluster: Cluster) -> None:
    cluster.state, cluster.reason = "DOWN", "TY:gone: no answer for 15 s"
    report_state(cluster.site, "waiting")
    daemon = start(cluster)
    rounds(daemon, 5)
    assert (cluster.state, cluster.started) == ("DOWN", 0)


def test_operators_drain_stays(cluster: Cluster) -> None:
    cluster.state, cluster.reason = "IDLE+DRAIN", "bad cable"
    daemon = start(cluster)
    FAULTS["disk-full"][0][0](cluster.site)
    rounds(daemon, 3)
    cluster.site.usage.clear()
    rounds(daemon, 4)
    assert (cluster.state, cluster.reason) == ("IDLE+DRAIN", "bad cable")


def test_new_daemon_needs_proof_before_it_resumes(cluster: Cluster) -> None:
    cluster.state, cluster.reason = "IDLE+DRAIN", REASON
    FAULTS["disk-full"][0][0](cluster.site)
    daemon = start(cluster)
    rounds(daemon, 1)
    assert cluster.drained, "the ledger was lost, but the fault is still there"
    cluster.site.usage.clear()
    rounds(daemon, DISK.passes)
    assert not cluster.drained


def test_node_is_not_resumed_during_the_bootstrap(cluster: Cluster) -> None:
    cluster.state, cluster.reason = "IDLE+DRAIN", REASON
    report_state(cluster.site, "waiting")
    daemon = start(cluster)
    rounds(daemon, 5)
    assert cluster.drained
    report_state(cluster.site, "ready")
    daemon.settle()
    assert not cluster.drained


def test_verdicts_survive_a_restart_of_the_daemon(cluster: Cluster) -> None:
    daemon = start(cluster)
    FAULTS["gpu-xid"][0][0](cluster.site)
    rounds(daemon, 1)
    daemon.node.events.clear()
    again = start(cluster)
    rounds(again, 5)
    assert cluster.drained
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


def test_xid_drains_within_a_second(cluster: Cluster) -> None:
    """A pipe replaces the kernel log."""
    log = cluster.site.root / "dev/kmsg"
    log.parent.mkdir(parents=True)
    os.mkfifo(log)
    writer = os.open(log, os.O_RDWR)
    daemon = start(cluster)
    threading.Thread(target=daemon.run, daemon=True).start()
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
