"""A cluster that stops itself: the repair service with fake Slurm commands and machines.

tests/integration/test_sleep.py stops and starts a cluster of virtual machines.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from repair.power import OFF, ON, Elastic, RefusedError
from repair.service import GATE, Group, Service, Site
from repair.sleep import SleepSettings, connections

from trainyard.faults import ON_TIMES, SLEEP_REQUEST

NAMES = ("a-0", "a-1")
IDLE_SECONDS = 600.0
STEP = 10.0
BOOT_SECONDS = 20.0


@dataclass
class World:
    """Slurm and the machines. Machines start and stop at once."""

    folder: Path
    states: dict[str, str] = field(default_factory=lambda: {"a-0": "IDLE+POWERED_DOWN", "a-1": "IDLE"})
    machines: dict[str, str] = field(default_factory=lambda: {"a-0": OFF, "a-1": ON, "head": ON})
    jobs: str = ""
    partition: str = "UP"
    connections: int = 0
    is_refusing: bool = False
    stops: list[str] = field(default_factory=list)
    registers: dict[str, float] = field(default_factory=dict)
    """Mapping from each node that is starting to the time at which its slurmd registers."""
    now: float = 1000.0
    service: Service = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / SLEEP_REQUEST).parent.mkdir()
        self.restart()

    def restart(self) -> None:
        group = Group("a", 0, dict.fromkeys(NAMES, "10.0.0.1"), Elastic(NAMES, 1, 10**6))
        site = Site(15.0, (group,), 200.0, sleep=SleepSettings("head", IDLE_SECONDS))
        self.service = Service(
            site, state=self.folder, control=self.control, queue=self.queue, answering=set, power=Calls(self)
        )
        assert self.service.sleep is not None
        self.service.sleep.connections = lambda: self.connections

    def control(self, *arguments: str) -> str | None:
        if arguments[:2] == ("-o", "show"):
            lines = [f"NodeName={name} State={state} BootTime=1\n" for name, state in self.states.items()]
            partition = f"PartitionName=a AllowGroups=ALL State={self.partition} TotalCPUs=2\n"
            return {"node": "".join(lines), "partition": partition}.get(arguments[2], "")
        values = dict(word.split("=", 1) for word in arguments if "=" in word)
        if "partitionname" in values:
            self.partition = values["state"].upper()
        elif values["state"] == "down":
            self.states[values["nodename"]] = f"DOWN+DRAIN Reason={values['reason']}"
        elif values["state"] == "power_down":
            self.states[values["nodename"]] = "IDLE+POWERING_DOWN"
        elif values["state"] == "power_up":
            self.states[values["nodename"]] = "IDLE+POWERING_UP"
        return ""

    def queue(self, *arguments: str) -> str:
        assert arguments == ("-h", "-a", "-o", "%A")
        return self.jobs

    def request(self, at: float | None = None) -> None:
        (self.folder / SLEEP_REQUEST).write_text(json.dumps({"at": self.now if at is None else at}))

    @property
    def refused(self) -> str:
        path = self.folder / SLEEP_REQUEST
        return str(json.loads(path.read_text()).get("refused", "")) if path.exists() else ""

    @property
    def recorded(self) -> str:
        """The head's last state in the record of on-times."""
        rows = (line.split() for line in (self.folder / ON_TIMES).read_text().splitlines())
        return [state for _, name, state in rows if name == "head"][-1]

    def run(self, seconds: float, step: float = STEP) -> None:
        for _ in range(int(seconds / step)):
            self.now += step
            for name in [name for name, when in self.registers.items() if self.now >= when]:
                del self.registers[name]
                self.states[name] = "IDLE"
            self.service.run_once(self.now, self.now)


class Calls:
    """The channel."""

    def __init__(self, world: World) -> None:
        self.world = world

    def states(self, names: Collection[str]) -> Mapping[str, str]:
        return {name: self.world.machines[name] for name in names}

    def start(self, name: str) -> None:
        self.world.machines[name] = ON
        self.world.registers[name] = self.world.now + BOOT_SECONDS

    def stop(self, name: str) -> None:
        if name == "head" and self.world.is_refusing:
            raise RefusedError("403 AuthorizationFailed")
        self.world.stops.append(name)
        self.world.machines[name] = OFF
        if self.world.states.get(name) == "IDLE+POWERING_DOWN":
            self.world.states[name] = "IDLE+POWERED_DOWN"

    def failures(self) -> Mapping[str, str]:
        return {}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_idle_cluster_stops_its_workers_and_then_the_head(world: World) -> None:
    world.run(IDLE_SECONDS)
    assert world.machines["head"] == ON
    assert world.partition == "UP"
    world.run(5 * STEP)
    assert world.machines == {"a-0": OFF, "a-1": OFF, "head": OFF}
    assert world.stops == ["a-1", "head"]
    assert world.partition == "DOWN"
    assert world.recorded == "off"


def test_the_partitions_open_when_the_cluster_is_awake(world: World) -> None:
    world.run(IDLE_SECONDS + 200.0)
    assert (world.machines["head"], world.partition) == (OFF, "DOWN")
    world.machines["head"] = ON
    world.restart()
    world.run(STEP)
    assert world.partition == "UP"
    assert world.recorded == "on"
    world.run(IDLE_SECONDS / 2)
    assert world.machines["head"] == ON, "the idle time begins again"


@pytest.mark.parametrize("obstacle", ["connection", "waiting job", "running job", "gate"])
def test_a_used_cluster_does_not_stop(world: World, obstacle: str) -> None:
    match obstacle:
        case "connection":
            world.connections = 1
        case "waiting job":
            world.jobs = "7\n"
        case "running job":
            world.states["a-1"] = "MIXED"
        case _:
            with (world.folder / GATE).open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH)
                world.run(3 * IDLE_SECONDS)
    world.run(3 * IDLE_SECONDS if obstacle != "gate" else 0)
    assert world.machines["head"] == ON
    assert world.partition == "UP"
    assert world.machines["a-1"] == ON


def test_a_connection_while_the_workers_stop_keeps_the_head_on(world: World) -> None:
    world.run(IDLE_SECONDS + 2 * STEP)
    assert world.partition == "DOWN"
    world.connections = 1
    world.run(2 * STEP)
    assert world.partition == "UP"
    world.run(2 * IDLE_SECONDS)
    assert world.machines["head"] == ON


def test_a_request_stops_a_cluster_with_waiting_jobs_and_connections(world: World) -> None:
    world.jobs, world.connections = "7\n", 2
    world.request(world.now + 60.0)
    world.run(50.0)
    assert world.partition == "UP", "the people who are logged in have a minute"
    world.run(150.0)
    assert set(world.machines.values()) == {OFF}


def test_a_request_is_refused_while_a_job_runs(world: World) -> None:
    world.states["a-1"] = "MIXED"
    world.request()
    world.run(2 * STEP)
    assert world.refused == "a job is running"
    world.states["a-1"] = "IDLE"
    world.run(100.0)
    assert world.machines["head"] == ON


def test_a_head_that_may_not_stop_itself_opens_the_partitions(world: World) -> None:
    world.is_refusing = True
    world.request()
    world.run(120.0)
    assert world.refused == "403 AuthorizationFailed"
    assert world.partition == "UP"
    assert world.recorded == "on"


def test_a_head_that_does_not_stop_is_usable_again(world: World) -> None:
    world.request()
    world.run(120.0)
    assert world.machines["head"] == OFF
    # The service still runs, so the machine did not stop.
    world.run(700.0)
    assert "did not stop" in world.refused
    assert world.partition == "UP"


def test_the_machine_of_a_drained_node_stops_and_the_node_stays_drained(world: World) -> None:
    world.states["a-1"] = "IDLE+DRAIN Reason=fan"
    world.request()
    world.run(200.0)
    assert set(world.machines.values()) == {OFF}
    assert world.states["a-1"] == "DOWN+DRAIN Reason=fan", "slurmctld remembers only this state"


def test_the_machine_of_a_lost_node_stops(world: World) -> None:
    world.states["a-1"] = "DOWN+NOT_RESPONDING Reason=TY:gone: no answer for 15 s"
    world.request()
    world.run(200.0)
    assert set(world.machines.values()) == {OFF}


def test_a_machine_that_has_just_been_started_keeps_the_head_on(world: World) -> None:
    """The group's minimum starts a machine in the moment of the request."""
    world.states["a-1"], world.machines["a-1"] = "IDLE+POWERED_DOWN", OFF
    world.run(6.0, step=6.0)
    assert world.states["a-0"] == "IDLE+POWERING_UP"
    world.request()
    world.run(6.0, step=6.0)
    world.run(3.0, step=3.0)  # the machine has not been looked up since its start
    assert (world.machines["a-0"], world.machines["head"]) == (ON, ON)
    world.run(BOOT_SECONDS + 60.0, step=3.0)
    assert world.machines == {"a-0": OFF, "a-1": OFF, "head": OFF}


def test_a_machine_that_a_person_starts_keeps_the_head_on(world: World) -> None:
    world.request()
    world.run(2 * STEP)
    world.machines["a-0"] = ON  # the service looks at this machine once a minute
    world.run(3 * STEP)
    assert world.machines["a-1"] == OFF
    assert world.machines["head"] == ON


def test_a_machine_that_does_not_stop_keeps_the_cluster_awake(world: World) -> None:
    world.states["a-1"] = "IDLE+RESERVED"
    world.request()
    world.run(500.0)
    assert world.partition == "DOWN"
    world.run(200.0)
    assert world.refused == "these machines do not stop: a-1"
    assert world.partition == "UP"
    assert world.machines["head"] == ON


def test_only_established_connections_to_ssh_count(tmp_path: Path) -> None:
    header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n"
    rows = [
        "   0: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000",  # sshd listens
        "   1: 0F02000A:0016 0202000A:9C40 01 00000000:00000000 02:00000000",  # a login
        "   2: 0F02000A:8AE2 0302000A:0016 01 00000000:00000000 02:00000000",  # the head connects to a worker
        "   3: 0F02000A:0016 0202000A:9C42 06 00000000:00000000 03:00000000",  # a closed connection
    ]
    (tmp_path / "tcp").write_text(header + "\n".join(rows) + "\n")
    tables = tmp_path / "tcp", tmp_path / "tcp6"
    assert connections(tables) == 1, "this machine has no IPv6"
    (tmp_path / "tcp6").write_text(header + f"   0: {'0' * 32}:0016 {'0' * 32}:9C40 01 00000000:00000000\n")
    assert connections(tables) == 2
