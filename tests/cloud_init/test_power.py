"""Elastic nodes: the repair service with a model of slurmctld (power_model.py)."""

from __future__ import annotations

import fcntl
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from repair.power import HOLD_SECONDS, OFF, ON, Power, RefusedError

from tests.cloud_init.power_model import (
    BOOT_SECONDS,
    IDLE_SECONDS,
    NAMES,
    START_SECONDS,
    STOP_SECONDS,
    SUSPEND_SECONDS,
    Calls,
    Cluster,
    Controllers,
    Job,
    Machines,
)
from trainyard.faults import ON_TIMES


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.fixture
def asleep(cluster: Cluster) -> Cluster:
    """A cluster whose machines have been stopped."""
    cluster.run(IDLE_SECONDS + SUSPEND_SECONDS + 30)
    assert set(cluster.machines.states.values()) == {OFF}
    assert set(cluster.states().values()) == {"IDLE+POWERED_DOWN"}
    cluster.machines.calls.clear()
    return cluster


def test_idle_machines_are_stopped_in_time(cluster: Cluster) -> None:
    cluster.run(IDLE_SECONDS - 3)
    assert cluster.machines.calls == []
    cluster.run(9 + STOP_SECONDS)
    assert set(cluster.machines.states.values()) == {OFF}
    cluster.run(1000)
    assert cluster.machines.calls == [(OFF, name) for name in NAMES]


def test_a_job_starts_only_the_machines_that_it_needs(asleep: Cluster) -> None:
    asleep.jobs.append(Job(2, 30))
    asleep.run(BOOT_SECONDS + 9)
    assert asleep.jobs[0].state == "RUNNING"
    assert asleep.machines.calls == [(ON, "a-0"), (ON, "a-1")]
    asleep.run(600)
    assert (asleep.jobs[0].state, asleep.jobs[0].executions) == ("DONE", 1)
    assert set(asleep.machines.states.values()) == {OFF}


def test_the_hours_of_machines_are_recorded(asleep: Cluster) -> None:
    asleep.jobs.append(Job(1, 30))
    asleep.run(400)
    rows = [row.split(" ") for row in (asleep.folder / ON_TIMES).read_text().splitlines()]
    assert [row[1:] for row in rows if row[1] != "head"] == [
        *([name, "on"] for name in NAMES),
        *([name, "off"] for name in NAMES),
        ["a-0", "on"],
        ["a-0", "off"],
    ]
    on, off = (float(row[0]) for row in rows[-2:])
    assert off - on == pytest.approx(BOOT_SECONDS + 30 + IDLE_SECONDS + STOP_SECONDS, abs=15)


def test_the_minimum_stays_on_and_is_restored(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, minimum=1)
    cluster.run(600)
    on = [name for name, state in cluster.machines.states.items() if state == ON]
    assert len(on) == 1
    cluster.nodes[on[0]].flags.add("DRAIN")
    cluster.run(120)
    others = [name for name, state in cluster.machines.states.items() if state == ON and name != on[0]]
    assert len(others) == 1
    assert cluster.states()[others[0]] == "IDLE"


def test_closed_groups_keep_no_idle_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path, minimum=1)
    cluster.jobs.append(Job(1, 120))
    cluster.run(30)
    monkeypatch.setattr(cluster.service, "_close_partitions", lambda *_: None)
    assert cluster.service.reconciler is not None
    cluster.service.reconciler.closed = frozenset(NAMES)
    cluster.run(STOP_SECONDS + 15)
    assert sorted(cluster.machines.states.values()) == [OFF, OFF, ON]
    cluster.run(120 + STOP_SECONDS)
    assert (cluster.jobs[0].state, set(cluster.machines.states.values())) == ("DONE", {OFF})
    cluster.service.reconciler.closed = frozenset()
    cluster.run(BOOT_SECONDS + 60)
    assert sorted(cluster.machines.states.values()) == [OFF, OFF, ON]


def test_drained_and_reserved_nodes_stay_on(cluster: Cluster) -> None:
    cluster.nodes["a-0"].flags, cluster.nodes["a-0"].reason = {"DRAIN"}, "TY:xid: fell off the bus"
    cluster.nodes["a-1"].flags = {"PLANNED"}
    cluster.run(280)
    assert cluster.machines.states == {"a-0": ON, "a-1": ON, "a-2": OFF}
    assert cluster.states()["a-0"] == "IDLE+DRAIN"


@pytest.mark.parametrize("is_slow_to_refuse", [False, True])
def test_without_capacity_the_job_waits_and_the_reason_is_shown(asleep: Cluster, is_slow_to_refuse: bool) -> None:
    asleep.machines.full, asleep.machines.is_slow_to_refuse = True, is_slow_to_refuse
    job = Job(1, 30)
    asleep.jobs.append(job)
    asleep.run(60)
    # Each node is tried once, and then no longer.
    assert job.state == "PENDING"
    assert sorted(asleep.machines.calls) == [(ON, name) for name in NAMES]
    node = asleep.nodes["a-0"]
    assert node.base == "DOWN"
    assert "TY:power: the machine cannot start: no capacity; next attempt after " in node.reason
    asleep.run(HOLD_SECONDS / 2)
    assert len(asleep.machines.calls) == 3
    asleep.machines.full = False
    asleep.run(HOLD_SECONDS / 2 + BOOT_SECONDS + 30)
    assert job.state in {"RUNNING", "DONE"}
    assert job.executions == 1


def test_partial_capacity_does_not_keep_the_other_machines_on(asleep: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    job, start = Job(3, 30), asleep.machines.start

    def without_capacity(name: str) -> None:
        if name == "a-2":
            raise RefusedError("no capacity")
        start(name)

    reconciler = asleep.service.reconciler
    assert reconciler is not None
    monkeypatch.setattr(reconciler.power, "start", without_capacity)
    asleep.jobs.append(job)
    hours = 0.0
    for _ in range(9 * 60):
        asleep.run(60)
        hours += sum(state != OFF for state in asleep.machines.states.values()) / 60
    assert job.state == "PENDING"
    # Two machines start for each of six attempts: after 0, 10, 30, 70, 150 and 310 minutes.
    assert hours < 6 * 2 * (BOOT_SECONDS + IDLE_SECONDS + STOP_SECONDS + 60) / 3600


def test_an_outage_of_the_api_does_not_mark_nodes_as_faulty(asleep: Cluster) -> None:
    asleep.machines.broken = True
    job = Job(1, 30)
    asleep.jobs.append(job)
    asleep.run(3 * START_SECONDS + 60)
    asleep.machines.broken = False
    asleep.run(BOOT_SECONDS + 120)
    assert job.state == "DONE"
    assert {node.reason for node in asleep.nodes.values() if node.base == "DOWN"} == set()


@pytest.mark.parametrize("killed", [("a-1",), NAMES])
@pytest.mark.parametrize("phase", range(0, 30, 3))
def test_a_drain_survives_the_end_of_the_machine(cluster: Cluster, phase: int, killed: tuple[str, ...]) -> None:
    cluster.jobs.append(Job(3, 5000))
    cluster.run(90 + phase)
    node = cluster.nodes["a-1"]
    node.flags |= {"DRAIN"}
    node.reason = "alice@pc: broken fan"
    for name in killed:
        cluster.machines.kill(name)
    cluster.run(900)
    assert node.reason == "alice@pc: broken fan"
    assert node.base == "DOWN" or "DRAIN" in node.flags


def test_a_drain_survives_a_start_without_capacity(asleep: Cluster) -> None:
    asleep.machines.full = asleep.machines.is_slow_to_refuse = True
    asleep.jobs.append(Job(1, 30))
    asleep.run(3)
    node = asleep.nodes["a-0"]
    assert "POWERING_UP" in node.flags
    node.flags |= {"DRAIN"}
    node.reason = "alice@pc: broken fan"
    asleep.run(30)
    asleep.machines.full = False
    asleep.run(3 * HOLD_SECONDS)
    assert node.reason == "alice@pc: broken fan"
    assert node.base == "DOWN" or "DRAIN" in node.flags


def test_a_lost_node_does_not_count_towards_the_minimum(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, minimum=1)
    cluster.run(600)
    (on,) = [name for name, state in cluster.machines.states.items() if state == ON]
    cluster.nodes[on].base, cluster.nodes[on].reason = "DOWN", "TY:gone: no answer for 15 s"
    cluster.machines.booted[on] = 1e9
    cluster.run(BOOT_SECONDS + 30)
    assert [name for name, state in cluster.states().items() if state == "IDLE" and name != on]


def test_a_machine_that_does_not_come_up_is_stopped_and_marked(asleep: Cluster) -> None:
    job = Job(3, 30)
    asleep.jobs.append(job)
    asleep.run(6)
    asleep.machines.booted["a-1"] = 1e9
    asleep.run(START_SECONDS + 60)
    node = asleep.nodes["a-1"]
    assert (node.base, node.reason) == ("DOWN", "TY:gone: no answer within 3 min of the machine's start")
    assert asleep.machines.states["a-1"] == OFF
    assert job.state == "PENDING"


def test_a_machine_that_a_person_starts_returns_to_service(asleep: Cluster) -> None:
    asleep.machines.turn_on("a-0")
    asleep.run(BOOT_SECONDS + 9)
    assert asleep.states()["a-0"] == "IDLE"
    asleep.run(300)
    assert asleep.machines.states["a-0"] == OFF


def test_a_machine_that_a_person_starts_after_a_refusal_returns_to_service(asleep: Cluster) -> None:
    asleep.machines.full = True
    asleep.jobs.append(Job(1, 30))
    asleep.run(SUSPEND_SECONDS + 30)
    assert asleep.nodes["a-0"].reason.startswith("TY:power: ")
    asleep.machines.turn_on("a-0")
    asleep.run(BOOT_SECONDS + 45)
    assert (asleep.jobs[0].state, asleep.jobs[0].executions) == ("DONE", 1)
    assert (OFF, "a-0") not in asleep.machines.calls
    asleep.run(300)
    assert asleep.machines.states["a-0"] == OFF


def test_a_started_machine_that_never_registers_is_stopped(asleep: Cluster) -> None:
    asleep.machines.turn_on("a-0")
    asleep.machines.booted["a-0"] = 1e9
    asleep.run(START_SECONDS + 90)
    assert asleep.machines.states["a-0"] == OFF


def test_the_job_of_a_killed_machine_starts_again(asleep: Cluster) -> None:
    job = Job(3, 200)
    asleep.jobs.append(job)
    asleep.run(100)
    assert job.state == "RUNNING"
    asleep.machines.kill("a-1")
    asleep.run(BOOT_SECONDS + 120)
    assert (job.state, job.executions) == ("RUNNING", 2)


def test_the_gate_keeps_idle_machines_on(cluster: Cluster) -> None:
    with (cluster.folder / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        cluster.run(280)
        assert cluster.machines.calls == []
    cluster.run(60)
    assert set(cluster.machines.states.values()) == {OFF}


def test_a_lost_stop_is_repaired_before_the_next_job(cluster: Cluster) -> None:
    cluster.run(30)
    cluster.machines.broken = True
    cluster.run(IDLE_SECONDS + SUSPEND_SECONDS)
    assert set(cluster.states().values()) == {"IDLE+POWERED_DOWN"}
    job = Job(1, 30)
    cluster.jobs.append(job)
    cluster.run(3)
    cluster.machines.broken = False
    cluster.run(STOP_SECONDS + BOOT_SECONDS + 90)
    assert (job.state, job.executions) == ("DONE", 1)


def test_lost_second_command_is_repeated(asleep: Cluster) -> None:
    reconciler = asleep.service.reconciler
    assert reconciler is not None
    control = reconciler.control

    def without_power_down(*arguments: str) -> str | None:
        return None if "state=power_down" in arguments else control(*arguments)

    reconciler.control = without_power_down
    asleep.machines.full = True
    asleep.jobs.append(Job(3, 30))
    asleep.run(9)
    assert set(asleep.states().values()) == {"DOWN+NOT_RESPONDING+POWERING_UP"}
    reconciler.control = control
    asleep.run(90)
    assert set(asleep.states().values()) == {"DOWN+POWERED_DOWN"}


def _submit(cluster: Cluster, chance: random.Random) -> None:
    cluster.jobs.append(Job(chance.randint(1, 3), chance.randint(5, 200)))


def _cancel(cluster: Cluster, chance: random.Random) -> None:
    if cluster.jobs:
        cluster.cancel(chance.choice(cluster.jobs))


def _kill(cluster: Cluster, chance: random.Random) -> None:
    cluster.machines.kill(chance.choice(NAMES))


def _fill(cluster: Cluster, chance: random.Random) -> None:
    machines = cluster.machines
    machines.full, machines.is_slow_to_refuse = not machines.full, chance.random() < 0.5


def _break(cluster: Cluster, _chance: random.Random) -> None:
    cluster.machines.broken = not cluster.machines.broken


def _stop_slurmctld(cluster: Cluster, _chance: random.Random) -> None:
    cluster.is_down = not cluster.is_down


def _restart_service(cluster: Cluster, _chance: random.Random) -> None:
    cluster.restart_service()


def _start(cluster: Cluster, _chance: random.Random) -> None:
    for name in [name for name, state in cluster.machines.states.items() if state == OFF][:1]:
        cluster.machines.turn_on(name)


EVENTS = (_submit, _submit, _cancel, _kill, _fill, _break, _stop_slurmctld, _restart_service, _start)


def _disturb(cluster: Cluster, chance: random.Random) -> None:
    chance.choice(EVENTS)(cluster, chance)


@pytest.mark.parametrize("seed", range(50))
def test_random_faults_lose_no_job_and_waste_no_machine(tmp_path: Path, seed: int) -> None:
    _survive_faults(tmp_path, seed, Calls)


@pytest.mark.parametrize("seed", range(15))
def test_random_faults_on_existing_hosts(tmp_path: Path, seed: int) -> None:
    _survive_faults(tmp_path, seed, Controllers)


def _survive_faults(folder: Path, seed: int, channel: Callable[[Machines], Power]) -> None:
    chance = random.Random(seed)  # noqa: S311  (not for security)
    cluster = Cluster(folder, chance.randint(0, 1), channel)
    machines = cluster.machines
    for _ in range(30):
        _disturb(cluster, chance)
        cluster.run(chance.randint(1, 150))
    machines.full = machines.broken = cluster.is_down = False
    cluster.run(HOLD_SECONDS + 3 * START_SECONDS)
    for _ in range(40):
        if all(job.state in {"DONE", "CANCELLED"} for job in cluster.jobs):
            break
        # A node that is marked as faulty needs a person.
        for name, node in cluster.nodes.items():
            if node.base == "DOWN" and node.reason.startswith("TY:gone: no answer within"):
                cluster.control("update", f"nodename={name}", "state=resume")
        cluster.run(120)
    assert cluster.interrupted == []
    waiting = [job for job in cluster.jobs if job.state not in {"DONE", "CANCELLED"}]
    assert waiting == [], cluster.control("-o", "show", "node")
    cluster.run(IDLE_SECONDS + SUSPEND_SECONDS + START_SECONDS)
    on = [name for name, state in machines.states.items() if state != OFF]
    assert len(on) <= cluster.minimum, cluster.states()
