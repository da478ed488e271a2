"""The files of the simulated clouds: resources, counted faults, the printed list, and running processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from offline.__main__ import main
from offline.cloud.faults import strikes
from offline.cloud.making import is_running
from offline.cloud.world import Record, World, with_secrets
from offline.values import MARK, SECRET, Properties, Value

ROOT = Path(__file__).parents[3]
ID = "projects/p/global/networks/net"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World("s", tmp_path)


def _record(inputs: Properties, made_by: int = 0) -> Record:
    return Record(ID, "gcp:compute/network:Network", "urn:pulumi:s::p::t::net", inputs, {}, made_by)


def test_secrets_are_only_in_the_engines_state(world: World, tmp_path: Path) -> None:
    hidden: Value = {MARK: SECRET, "value": "hush"}
    world.put(_record({"plain": "seen", "deep": {"list": [hidden]}, "top": hidden}))
    assert all("hush" not in file.read_text() for file in tmp_path.rglob("*.json"))
    found = world.find(ID.upper())
    assert found
    assert found.inputs["plain"] == "seen"
    known: Properties = {"deep": {"list": [hidden]}, "top": hidden, "plain": "old"}
    assert with_secrets(found.inputs, known) == {"deep": {"list": [hidden]}, "top": hidden, "plain": "seen"}


def test_the_last_write_is_read(world: World) -> None:
    for number in range(20):
        world.put(_record({"number": number}))
        found = world.find(ID)
        assert found
        assert found.inputs == {"number": number}
    world.remove(ID)
    world.remove(ID)
    assert world.find(ID) is None


def test_an_interrupted_write_is_ignored(world: World, tmp_path: Path) -> None:
    world.put(_record({}))
    (file,) = (tmp_path / "s" / "resources").iterdir()
    file.with_name(f".{file.name}.1.1").write_text('{"id": "half')
    assert [record.id for record in world.records()] == [ID]


def test_related_resources_are_found_by_the_index(world: World) -> None:
    group, card, disk = "/groups/g", "/groups/g/cards/card", "/groups/g/disks/disk"
    world.put(Record(group, "t", "u", {}, {}))
    world.put(Record(card, "t", "u", {}, {}, uses=["/nets/n"], claims=["/nets/n#10.0.0.4"]))
    world.put(Record(disk, "t", "u", {}, {}))
    assert [found.id for found in world.linked("/NETS/n")] == [card]
    assert [found.id for found in world.linked("/nets/n#10.0.0.4")] == [card]
    assert {found.id for found in world.linked(group)} == {card, disk}
    # An update removes outdated references from the index.
    world.put(Record(card, "t", "u", {}, {}, uses=["/nets/other"]))
    assert list(world.linked("/nets/n")) == list(world.linked("/nets/n#10.0.0.4")) == []
    assert [found.id for found in world.linked("/nets/other")] == [card]
    world.remove(card)
    assert list(world.linked("/nets/other")) == []


def test_the_resources_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_OFFLINE", str(tmp_path))
    assert main(["list", "s"]) == 1
    assert f"{tmp_path}/s does not exist. Fix: " in capsys.readouterr().err
    World("s").put(_record({}, made_by=1))
    assert main(["list", "s"]) == 0
    assert capsys.readouterr().out.split() == ["unfinished", "gcp:compute/network:Network", ID]


def test_faults_are_counted_across_processes(tmp_path: Path) -> None:
    def met(name: str) -> list[str]:
        return [fault.fault for fault in strikes(World("s", tmp_path), "create", "gcp:x:Instance", name)]

    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "faults.yaml").write_text("- {fault: stockout, name: 'gpu-*', skip: 1, times: 2}\n")
    found = [met(name) for name in ("gpu-0", "head", "gpu-1", "gpu-2", "gpu-3")]
    assert found == [[], [], ["stockout"], ["stockout"], []]
    (folder / "faults.yaml").write_text("- {fault: stockout, name: 'gpu-*', times: 1}\n")
    assert (met("gpu-0"), met("gpu-1")) == (["stockout"], [])


def test_a_live_process_runs_and_an_ended_one_does_not() -> None:
    assert is_running(os.getpid())
    child = subprocess.Popen(["true"])
    # With WNOWAIT, the child process remains a zombie.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    os.kill(child.pid, 0)
    assert not is_running(child.pid)
    child.wait()
    assert not is_running(child.pid)


def test_no_code_checks_processes_with_signal_zero() -> None:
    signal_zero = ("os.kill(", ", 0)")
    lines = [
        f"{file.relative_to(ROOT)}:{number}"
        for folder in ("components", "yard", "offline", "tools", "trainyard")
        for file in (ROOT / folder).rglob("*.py")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if all(part in line for part in signal_zero)
    ]
    assert lines == [], "use offline.cloud.making.is_running or a pidfd"
