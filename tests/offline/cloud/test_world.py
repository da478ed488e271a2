"""The simulated clouds without an engine: resources, listing, addresses, faults and host keys."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from offline.__main__ import main
from offline.cloud.addressing import AddressRequest, problem
from offline.cloud.drift import evicted
from offline.cloud.faults import strikes
from offline.cloud.outputs import host_key
from offline.cloud.world import Record, World, with_secrets
from offline.values import MARK, SECRET, Properties, Value

ID = "projects/p/global/networks/net"


def _record(inputs: Properties, made_by: int = 0) -> Record:
    return Record(ID, "gcp:compute/network:Network", "urn:pulumi:s::p::t::net", inputs, {}, made_by)


def test_secrets_are_only_in_the_engines_state(tmp_path: Path) -> None:
    world = World("s", tmp_path)
    hidden: Value = {MARK: SECRET, "value": "hush"}
    world.put(_record({"plain": "seen", "deep": {"list": [hidden]}, "top": hidden}))
    assert all("hush" not in file.read_text() for file in tmp_path.rglob("*.json"))
    found = world.find(ID.upper())
    assert found
    assert found.inputs["plain"] == "seen"
    known: Properties = {"deep": {"list": [hidden]}, "top": hidden, "plain": "old"}
    assert with_secrets(found.inputs, known) == {"deep": {"list": [hidden]}, "top": hidden, "plain": "seen"}


def test_the_last_write_is_read(tmp_path: Path) -> None:
    world = World("s", tmp_path)
    for number in range(20):
        world.put(_record({"number": number}))
        found = world.find(ID)
        assert found
        assert found.inputs == {"number": number}
    world.remove(ID)
    world.remove(ID)
    assert world.find(ID) is None


def test_an_interrupted_write_is_ignored(tmp_path: Path) -> None:
    world = World("s", tmp_path)
    world.put(_record({}))
    (file,) = (tmp_path / "s" / "resources").iterdir()
    file.with_name(f".{file.name}.1.1").write_text('{"id": "half')
    assert [record.id for record in world.records()] == [ID]


def test_related_resources_are_found_by_the_index(tmp_path: Path) -> None:
    world = World("s", tmp_path)
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


def test_the_listing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--folder", str(tmp_path), "list", "s"]) == 1
    assert "no offline run of stack 's'" in capsys.readouterr().err
    World("s", tmp_path).put(_record({}, made_by=1))
    assert main(["--folder", str(tmp_path), "list", "s"]) == 0
    assert capsys.readouterr().out.split() == ["unfinished", "gcp:compute/network:Network", ID]
    assert main(["--folder", str(tmp_path), "list", "s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"id": ID, "type": "gcp:compute/network:Network", "state": "unfinished"}
    ]
    assert main(["--folder", str(tmp_path), "stacks"]) == 0
    assert capsys.readouterr().out == "s\n"


def test_faults_are_counted_across_processes(tmp_path: Path) -> None:
    def met(name: str) -> list[str]:
        return [fault.fault for fault in strikes(World("s", tmp_path), "create", "gcp:x:Instance", name)]

    folder = tmp_path / "s"
    folder.mkdir()
    (folder / "faults.yaml").write_text("- {fault: stockout, name: 'gpu-*', skip: 1, times: 2}\n")
    assert [met(name) for name in ("gpu-0", "head", "gpu-1", "gpu-2", "gpu-3")] == [
        [],
        [],
        ["stockout"],
        ["stockout"],
        [],
    ]
    (folder / "faults.yaml").write_text("- {fault: stockout, name: 'gpu-*', times: 1}\n")
    assert (met("gpu-0"), met("gpu-1")) == (["stockout"], [])


@pytest.mark.parametrize(
    ("address", "ranges", "reason"),
    [
        ("10.0.0.4", ["10.0.0.0/24"], ""),
        ("10.0.0.3", ["10.0.0.0/24"], "reserved by the cloud. Fix: choose an address from 10.0.0.4 to 10.0.0.254"),
        ("10.0.0.255", ["10.0.0.0/24"], "reserved"),
        ("10.0.1.4", ["10.0.0.0/24"], "not in the subnet's range 10.0.0.0/24"),
        ("10.0.1.4", ["10.0.0.0/24", "10.0.1.0/24"], ""),
        ("10.0.0.9", ["10.0.0.0/24"], "in use"),
        ("10.0.0.9", [], "in use"),
        ("ten", ["10.0.0.0/24"], "Fix: write an IPv4 address"),
    ],
)
def test_addresses(address: str, ranges: list[str], reason: str) -> None:
    found = problem(AddressRequest("subnet", address), ranges, (4, 1), {"10.0.0.9"})
    assert reason in found
    assert bool(found) == bool(reason)


def test_a_host_key_is_valid_and_contains_offline() -> None:
    kind, text = host_key("machine").split()
    blob = base64.b64decode(text, validate=True)
    assert (blob[4:15].decode(), len(blob)) == (kind, 4 + 11 + 4 + 32)
    assert "offline" in text
    assert host_key("machine") != host_key("other")


def test_an_eviction_stops_or_deletes_as_the_machine_asked() -> None:
    stopped = evicted(_record({"scheduling": {"instanceTerminationAction": "STOP"}}))
    assert stopped
    assert evicted(_record({"scheduling": {"instanceTerminationAction": "DELETE"}})) is None
    assert evicted(_record({"evictionPolicy": "Delete"})) is None
    assert evicted(_record({"evictionPolicy": "Deallocate"}))
