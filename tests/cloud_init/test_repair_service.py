"""The repair service: spares, lost nodes and the nodes' history, with a fake scontrol in Slurm 24.11's format."""

from __future__ import annotations

import fcntl
import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from repair import service
from repair.service import KEPT, NO_SLURMD, Service, answering, load_history, read_site, scontrol

from trainyard.faults import HISTORY, ON_TIMES, Change

ADDRESSES = {"a-0": "10.0.0.1", "a-1": "10.0.0.2", "a-2": "10.0.0.3"}


def parameters(spares: int) -> str:
    return json.dumps({"silent_seconds": 15, "groups": {"a": {"spares": spares, "nodes": ADDRESSES}}})


HOLD = (
    "create reservation reservationname=spares-a nodes={} starttime=now duration=UNLIMITED users=root flags=IGNORE_JOBS"
)
LOST = "update nodename={} state=down reason=TY:gone: no answer for 15 s"


@dataclass
class FakeSlurm:
    """State and reason of each node, nodes that have not registered, and the node list of each reservation."""

    states: dict[str, str] = field(default_factory=lambda: dict.fromkeys(ADDRESSES, "IDLE"))
    reasons: dict[str, str] = field(default_factory=dict)
    unregistered: set[str] = field(default_factory=set)
    held: dict[str, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    def __call__(self, *arguments: str) -> str | None:
        match arguments:
            case ("-o", "show", "node"):
                return "".join(map(self._line, self.states))
            case ("-o", "show", "reservation"):
                rows = (
                    f"ReservationName={name} StartTime=x Nodes={nodes} NodeCnt=1\n" for name, nodes in self.held.items()
                )
                return "".join(rows) or "No reservations in the system\n"
            case ("show", "hostnames", nodes):
                return nodes.replace(",", "\n")
        self.calls.append(" ".join(arguments))
        values = dict(word.split("=", 1) for word in arguments if "=" in word)
        if arguments[0] == "delete":
            del self.held[values["reservationname"]]
        elif "reservationname" in values:
            self.held[values["reservationname"]] = values["nodes"]
        else:
            self.states[values["nodename"]] = {"down": "DOWN", "drain": "IDLE+DRAIN"}[values["state"]]
            self.reasons[values["nodename"]] = values.get("reason", "")
        return ""

    def _line(self, name: str) -> str:
        boot = "None" if name in self.unregistered else "2026-11-22T10:00:00"
        reason = f" Reason={self.reasons[name]} [root@2026-11-22T10:00:00]" if self.reasons.get(name) else ""
        return f"NodeName={name} Arch=x86_64 State={self.states[name]} ThreadsPerCore=1 BootTime={boot}{reason}\n"


@dataclass
class Head:
    """The repair service, its simulated clock, and the workers that respond."""

    folder: Path
    spares: int = 1
    slurm: FakeSlurm = field(default_factory=FakeSlurm)
    alive: set[str] = field(default_factory=lambda: set(ADDRESSES))
    now: float = 1000.0
    service: Service = field(init=False)

    def __post_init__(self) -> None:
        (self.folder / HISTORY).parent.mkdir()
        self.restart()

    def restart(self) -> None:
        def answering(addresses: Mapping[str, str]) -> set[str]:
            return self.alive & addresses.keys()

        site = read_site(parameters(self.spares))
        self.service = Service(site, state=self.folder, control=self.slurm, answering=answering)

    def run(self, seconds: float = 3.0) -> list[str]:
        """Run the service for `seconds` on its clock. Return the calls that change Slurm."""
        self.slurm.calls.clear()
        end = self.now + seconds
        while self.now < end:
            self.now += 3
            self.service.run_once(self.now, self.now)
        return list(self.slurm.calls)


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


@pytest.fixture
def plain(tmp_path: Path) -> Head:
    """A head without spares, whose workers have answered."""
    head = Head(tmp_path, spares=0)
    assert head.run(30) == []
    return head


def test_spare_is_held_back_once(head: Head) -> None:
    assert head.run() == [HOLD.format("a-2")]
    assert head.run(30) == []


@pytest.mark.parametrize(
    ("states", "spare"),
    [({"a-1": "ALLOCATED", "a-2": "MIXED+COMPLETING"}, "a-0"), (dict.fromkeys(ADDRESSES, "ALLOCATED"), "a-2")],
)
def test_idle_nodes_become_spares_before_busy_nodes(head: Head, states: dict[str, str], spare: str) -> None:
    head.slurm.states |= states
    assert head.run() == [HOLD.format(spare)]


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN", "ALLOCATED+DRAIN", "IDLE+RESERVED+NOT_RESPONDING"])
def test_unusable_node_is_replaced_by_the_spare(head: Head, state: str) -> None:
    head.run()
    head.slurm.states["a-0"] = state
    assert head.run() == ["delete reservationname=spares-a"]
    assert head.run(30) == []


def test_repaired_node_becomes_the_spare(head: Head) -> None:
    head.run()
    head.slurm.states |= {"a-0": "IDLE+DRAIN"}
    head.run()
    head.slurm.states |= {"a-0": "IDLE", "a-1": "ALLOCATED", "a-2": "ALLOCATED"}
    assert head.run() == [HOLD.format("a-0")]


def test_faulty_spare_leaves_the_reservation(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=2)
    assert head.run() == [HOLD.format("a-1,a-2")]
    head.slurm.states["a-2"] = "IDLE+DRAIN"
    assert head.run() == ["update reservationname=spares-a nodes=a-1"]


def test_spares_are_free_while_the_gate_runs(head: Head) -> None:
    head.run()
    with (head.folder / "gate.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert head.run() == ["delete reservationname=spares-a"]
        head.alive.discard("a-0")
        head.slurm.states["a-0"] = "DOWN+NOT_RESPONDING"
        assert head.run(60) == []
        assert load_history(head.folder / HISTORY) == {}
    head.alive.add("a-0")
    head.slurm.states["a-0"] = "IDLE"
    assert head.run() == [HOLD.format("a-2")]


def test_reservation_of_a_removed_group_is_deleted(head: Head) -> None:
    head.slurm.held["spares-old"] = "old-0"
    assert "delete reservationname=spares-old" in head.run()


def test_lost_node_is_set_down_and_the_spare_is_released(head: Head) -> None:
    head.run(30)
    head.alive.discard("a-0")
    assert head.run(12) == []
    assert head.run(9) == [LOST.format("a-0"), "delete reservationname=spares-a"]
    assert head.run(60) == []


def test_node_that_never_answered_is_not_lost(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0, alive=set())
    assert head.run(120) == []


@pytest.mark.parametrize("seconds", [30, 600])
def test_outage_of_the_head_ends_no_job(plain: Head, seconds: int) -> None:
    plain.alive.clear()
    assert plain.run(seconds) == []
    plain.alive = {"a-1"}
    assert plain.run(12) == [], "the other workers may need some seconds until they answer again"
    assert plain.run(9) == []
    assert plain.run(45) == [LOST.format("a-0"), LOST.format("a-2")]


def test_freeze_of_the_head_ends_no_job(plain: Head) -> None:
    plain.now += 600
    plain.alive = {"a-1", "a-2"}
    assert plain.run(6) == []
    assert LOST.format("a-0") in plain.run(15)


def test_many_silent_nodes_are_lost_later(plain: Head) -> None:
    plain.alive = {"a-1"}
    assert plain.run(60) == []
    assert plain.run(6) == [LOST.format("a-0"), LOST.format("a-2")]


def test_node_lost_before_a_restart_is_set_down(tmp_path: Path) -> None:
    head = Head(tmp_path, spares=0, alive={"a-1", "a-2"})
    assert head.run(60) == []
    head.slurm.states["a-0"] = "ALLOCATED+NOT_RESPONDING"
    assert head.run(6) == [LOST.format("a-0")]


def test_node_behind_a_firewall_is_set_down_only_once(plain: Head) -> None:
    plain.alive.discard("a-0")
    assert LOST.format("a-0") in plain.run(30)
    plain.slurm.states["a-0"] = "IDLE"
    assert plain.run(120) == []
    plain.alive.add("a-0")
    plain.run(3)
    plain.alive.discard("a-0")
    assert plain.run(30) == [LOST.format("a-0")]


def test_node_whose_slurmd_is_silent_is_drained(plain: Head) -> None:
    plain.slurm.states["a-0"] = "ALLOCATED+NOT_RESPONDING"
    assert plain.run(60) == []
    assert plain.run(12) == [f"update nodename=a-0 state=drain reason={NO_SLURMD}"]
    assert plain.run(60) == []


@pytest.mark.parametrize(
    ("state", "unregistered"),
    [("DOWN+NOT_RESPONDING", set()), ("IDLE+DRAIN+NOT_RESPONDING", set()), ("IDLE+NOT_RESPONDING", {"a-0"})],
)
def test_node_out_of_service_or_never_registered_is_not_drained(
    tmp_path: Path, state: str, unregistered: set[str]
) -> None:
    head = Head(tmp_path, spares=0)
    head.slurm.states["a-0"], head.slurm.reasons["a-0"], head.slurm.unregistered = state, "bad cable", unregistered
    assert head.run(120) == []


def test_drained_lost_node_keeps_its_reason(plain: Head) -> None:
    plain.slurm.states["a-0"], plain.slurm.reasons["a-0"] = "ALLOCATED+DRAIN", "bad cable"
    plain.alive.discard("a-0")
    assert plain.run(30) == ["update nodename=a-0 state=down reason=bad cable"]
    plain.slurm.states["a-1"], plain.slurm.reasons["a-1"] = "IDLE+DRAIN", "TY:roll"
    plain.alive = {"a-2"}
    assert plain.run(60) == []


def test_history_survives_a_restart(head: Head) -> None:
    head.run()
    head.slurm.states["a-0"], head.slurm.reasons["a-0"] = "IDLE+DRAIN", "TY:disk-full: / is full"
    head.run()
    out = head.now
    head.slurm.states["a-0"] = "IDLE"
    head.run()
    head.restart()
    head.run()
    found = load_history(head.folder / HISTORY)
    assert found == {"a-0": (Change(out, "TY:disk-full: / is full"), Change(out + 3, ""))}
    assert (head.folder / HISTORY).stat().st_mode & 0o777 == 0o644


def test_history_has_a_limit(head: Head) -> None:
    for number in range(KEPT + 5):
        head.slurm.states["a-0"], head.slurm.reasons["a-0"] = "IDLE+DRAIN", f"reason {number}"
        head.run()
    assert len(load_history(head.folder / HISTORY)["a-0"]) == KEPT


@pytest.mark.parametrize(("spares", "listings"), [(0, range(3, 6)), (1, range(38, 61))])
def test_healthy_nodes_without_spares_are_listed_rarely(tmp_path: Path, spares: int, listings: range) -> None:
    head, calls = Head(tmp_path, spares=spares), list[tuple[str, ...]]()

    def control(*arguments: str) -> str | None:
        calls.append(arguments)
        return head.slurm(*arguments)

    head.service.control = control
    head.run(60)
    assert len([words for words in calls if "show" in words]) in listings
    head.alive.discard("a-0")
    assert any("state=down" in change for change in head.run(24))


def test_drained_node_is_recorded_within_the_quiet_interval(plain: Head) -> None:
    plain.slurm.states["a-0"], plain.slurm.reasons["a-0"] = "IDLE+DRAIN", "TY:disk-full: / is full"
    plain.run(18)
    assert list(load_history(plain.folder / HISTORY)) == ["a-0"]


def test_failed_scontrol_changes_nothing(head: Head) -> None:
    head.service.control = lambda *_: None
    assert head.run(60) == []


def test_a_name_in_a_different_encoding_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user can choose any bytes for the name of a job. An exception would end the service."""
    (tmp_path / "scontrol").write_text("#!/bin/sh\nprintf 'JobId=7 JobName=\\377 Requeue=1\\n'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert scontrol("-o", "show", "job", "7") == "JobId=7 JobName=\ufffd Requeue=1\n"


def test_refused_and_accepted_connections_are_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as sockets:
        servers = [sockets.enter_context(socket.socket()) for _ in range(2)]
        port = 0
        for server, address in zip(servers, ("127.0.0.2", "127.0.0.3"), strict=True):
            server.bind((address, port))
            port = server.getsockname()[1]
            server.listen(0)
        # The second server's queue is full, so the kernel answers no further connection.
        for _ in range(2):
            client = sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.3", port))
        monkeypatch.setattr(service, "_CLOSED_PORT", port)
        monkeypatch.setattr(service, "_CONNECT_SECONDS", 0.5)
        addresses = {"accepts": "127.0.0.2", "silent": "127.0.0.3", "refuses": "127.0.0.4", "nowhere": "256.0.0.1"}
        assert answering(addresses) == {"accepts", "refuses"}


def test_changes_of_machines_are_recorded_once(head: Head) -> None:
    begin = head.now + 3
    head.run(30)
    record = head.folder / ON_TIMES
    names = ("head", "a-0", "a-1", "a-2")
    assert record.read_text() == "".join(f"{begin:.0f} {name} on\n" for name in names)
    assert record.stat().st_mode & 0o777 == 0o644
    # A line that was not written completely before a crash is replaced.
    record.write_text(record.read_text() + "17640")
    head.restart()
    head.service.site = read_site(json.dumps({"silent_seconds": 15, "groups": {"a": {"spares": 0, "nodes": {}}}}))
    head.run()
    assert record.read_text().splitlines()[-3:] == [f"{head.now:.0f} {name} off" for name in ("a-0", "a-1", "a-2")]
