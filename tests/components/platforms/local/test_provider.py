"""Tests for the dynamic providers, with a fake QEMU process."""

from __future__ import annotations

import json
import os
import signal
import socket
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from components.platforms.local.image import GoldenImage
from components.platforms.local.image_build import image_id
from components.platforms.local.machine import Machine
from components.platforms.local.paths import socket_folder
from components.platforms.local.process import started_under, wait_gone
from components.platforms.local.provider import (
    VM_BIRTH,
    VM_CHANGED_BY,
    VM_REPLACED_BY,
    VM_RESTARTED_BY,
    DiskProvider,
    SwitchProvider,
    VmProvider,
)
from tests.components.platforms.local.conftest import Executable
from tests.components.platforms.recording import HOST_KEY
from tests.offline.loopback_sshd import free_port
from trainyard.errors import PlatformError

pytestmark = pytest.mark.engine

Props = dict[str, Any]


@pytest.fixture
def inputs(stack_run: Path) -> Props:
    """Inputs for a machine with a running switch."""
    SwitchProvider().create({"folder": str(stack_run)})
    return {
        "host": "yard-head",
        "folder": str(stack_run),
        "image": image_id(),
        "memory_mib": 1024,
        "vcpus": 1,
        "private_ip": "10.77.0.4/20",
        "ssh_port": free_port(),
        "accelerator": "tcg",
        "niceness": 0,
        "user_data": "#cloud-config\n",
        "identity": "one",
        "switch_starts": 1,
        "data_disk": "",
        "forward": "guestfwd=tcp:10.0.2.100:80-cmd:true",
        "elastic": False,
    }


@pytest.fixture
def created(inputs: Props) -> Props:
    outs = VmProvider().create(inputs).outs
    assert outs is not None
    return outs


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid, 5)


def test_create_starts_a_machine_and_returns_its_host_key(created: Props, inputs: Props, stack_run: Path) -> None:
    assert created["host_key"] == HOST_KEY
    assert created["boots"] == 1
    assert created["running"] is True
    assert created["address"] == "127.0.0.1"
    assert created["accelerated_by"] == "tcg"
    assert created["pid"] == Machine(run=stack_run, name="yard-head").pid
    arguments = Path(f"/proc/{created['pid']}/cmdline").read_text().split("\0")
    forwarded = f"hostfwd=tcp:127.0.0.1:{created['ssh_port']}-:22,{inputs['forward']}"
    assert f"user,id=ext,ipv6=off,{forwarded}" in arguments


def test_each_input_replaces_or_restarts_a_machine_or_neither(created: Props, inputs: Props) -> None:
    provider = VmProvider()
    running = provider.read("id", created).outs or {}
    assert provider.diff("id", running, inputs).changes is False
    assert sorted(inputs) == sorted((*VM_REPLACED_BY, *VM_RESTARTED_BY, *VM_CHANGED_BY, *VM_BIRTH))
    for key in inputs:
        diff = provider.diff("id", running, {**inputs, key: "changed"})
        assert (diff.changes, diff.delete_before_replace) == (key not in VM_BIRTH, True), key
        assert diff.replaces == ([key] if key in VM_REPLACED_BY else []), key


def test_dead_machine_is_restarted_with_its_disk(created: Props, inputs: Props) -> None:
    disk = Path(inputs["folder"]) / "yard-head" / "disk.qcow2"
    before = disk.stat().st_ino
    kill(created["pid"])
    seen = VmProvider().read("id", created)
    assert seen.id == "id"
    assert seen.outs is not None
    assert seen.outs["running"] is False
    diff = VmProvider().diff("id", seen.outs, inputs)
    assert (diff.changes, diff.replaces) == (True, [])
    again = VmProvider().update("id", seen.outs, inputs).outs or {}
    assert (again["boots"], again["machine_id"]) == (2, created["machine_id"])
    assert again["pid"] != created["pid"]
    assert disk.stat().st_ino == before


def test_the_machine_of_an_elastic_node_stays_off(created: Props, inputs: Props) -> None:
    elastic = {**inputs, "elastic": True}
    outs = VmProvider().update("id", created, elastic).outs or {}
    assert (outs["pid"], outs["boots"], outs["elastic"]) == (created["pid"], 1, True)
    kill(created["pid"])
    seen = VmProvider().read("id", outs).outs or {}
    assert seen["running"] is False
    assert VmProvider().diff("id", seen, elastic).changes is False
    outs = VmProvider().update("id", seen, {**elastic, "niceness": 5}).outs or {}
    machine = Machine(run=Path(inputs["folder"]), name="yard-head")
    assert (outs["running"], outs["boots"], machine.pid) == (False, 1, None)
    assert json.loads(machine.start_file.read_text())["niceness"] == 5
    # A group that is no longer elastic has all its machines on.
    assert VmProvider().diff("id", outs, {**inputs, "niceness": 5}).changes is True
    outs = VmProvider().update("id", outs, {**inputs, "niceness": 5}).outs or {}
    assert (outs["boots"], outs["pid"]) == (2, machine.pid)


def test_a_state_without_the_optional_inputs_does_not_change(created: Props, inputs: Props) -> None:
    optional = ("forward", "elastic")
    older = {key: value for key, value in created.items() if key not in optional}
    news = {key: value for key, value in inputs.items() if key not in optional}
    assert VmProvider().diff("id", older, news).changes is False


@pytest.mark.parametrize("vanished", ["disk", "image"])
def test_a_machine_without_its_disk_is_gone(created: Props, image: GoldenImage, vanished: str) -> None:
    lost = image.folder / "manifest.json" if vanished == "image" else Path(created["folder"], "yard-head/disk.qcow2")
    lost.unlink()
    assert VmProvider().read("id", created).id == ""


def test_a_restart_keeps_user_data_and_image(created: Props, inputs: Props) -> None:
    news = {**inputs, "user_data": "other", "image": "other", "niceness": 3}
    outs = VmProvider().update("id", created, news).outs
    assert outs is not None
    assert (outs["user_data"], outs["image"]) == (inputs["user_data"], inputs["image"])


def test_create_replaces_an_earlier_machine_with_its_name(created: Props, inputs: Props) -> None:
    again = VmProvider().create(inputs).outs or {}
    assert again["machine_id"] != created["machine_id"]
    assert started_under(Path(inputs["folder"], "yard-head")) == [again["pid"]]


def test_delete_removes_all_files_and_can_be_repeated(created: Props, inputs: Props) -> None:
    for _ in range(2):
        VmProvider().delete("id", created)
        assert not Path(inputs["folder"], "yard-head").exists()
        assert started_under(Path(inputs["folder"], "yard-head")) == []


def test_delete_of_the_switch_ends_machines_without_pidfile(created: Props, inputs: Props) -> None:
    run = Path(inputs["folder"])
    (run / "yard-head" / "qemu.pid").unlink()
    assert len(started_under(run)) == 2
    for _ in range(2):
        SwitchProvider().delete("id", {"folder": str(run)})
        assert started_under(run) == []
        assert not run.exists()
        assert not socket_folder(run).exists()
    assert SwitchProvider().read("id", {"folder": str(run)}).id == ""


def test_a_port_in_use_fails_before_the_start(inputs: Props) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", inputs["ssh_port"]))
        other.listen()
        with pytest.raises(PlatformError, match=rf"port {inputs['ssh_port']} .* is in use .*ssh_port_base"):
            VmProvider().create(inputs)
    assert started_under(Path(inputs["folder"], "yard-head")) == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("out of luck\n", "stopped while it was booting"),
        ("Kernel panic - not syncing: VFS " * 3 + "\n", "has a kernel panic"),
        ("trainyard-hostkey: ssh-ed25519 AAAAhalf", "stopped while it was booting"),
        ("\x1b[2J\x1b[H menu\n", "stopped while it was booting"),
    ],
)
def test_a_failed_boot_prints_the_console_and_is_ended(
    inputs: Props, console: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    console.write_text(said)
    monkeypatch.setenv("FAKE_DIES", "1" if "stopped" in reason else "")
    with pytest.raises(PlatformError) as caught:
        VmProvider().create(inputs)
    assert reason in str(caught.value)
    assert said.strip().replace("\x1b", r"\x1b") in str(caught.value)
    assert started_under(Path(inputs["folder"], "yard-head")) == []


def test_only_repeated_kernel_panics_fail_the_boot(created: Props, inputs: Props) -> None:
    machine = Machine(run=Path(inputs["folder"]), name="yard-head")
    since = machine.console_size()
    panic = "Kernel panic - not syncing: Fatal exception\n"
    for more, reason in ((panic * 2, "no host key in time"), (panic, "has a kernel panic")):
        with machine.console.open("a") as log:
            log.write(more)
        with pytest.raises(PlatformError, match=reason):
            machine.wait_host_key(since, seconds=0.1)
    with machine.console.open("a") as log:
        log.write("trainyard-hostkey: ssh-ed25519 AAAAagain\n")
    assert machine.wait_host_key(since, seconds=5) == "ssh-ed25519 AAAAagain"


def test_the_head_is_created_when_its_sshd_answers(
    inputs: Props, console: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    monkeypatch.setattr(Machine, "wait_ssh", lambda self, port: ports.append(port))
    console.write_text(f"trainyard-hostkey: {HOST_KEY}\n")
    disk = Path(inputs["folder"], "data.qcow2")
    disk.write_text("")
    VmProvider().create({**inputs, "data_disk": str(disk)})
    assert ports == [inputs["ssh_port"]]


def test_waiting_for_sshd_tries_again_until_it_sends_a_greeting(
    created: Props, inputs: Props, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("components.platforms.local.machine._GREETING_SECONDS", 0.2)
    machine, connections = Machine(run=Path(inputs["folder"]), name="yard-head"), []

    def answer(server: socket.socket) -> None:
        for _ in range(3):
            # Before the guest has a network, QEMU accepts a connection, and no greeting follows.
            connections.append(server.accept()[0])
        connections[2].sendall(b"SSH-2.0-OpenSSH\r\n")

    machine.wait_ssh(inputs["ssh_port"], seconds=0.5)  # no program listens
    with socket.create_server(("127.0.0.1", inputs["ssh_port"])) as server:
        thread = Thread(target=answer, args=(server,))
        thread.start()
        machine.wait_ssh(inputs["ssh_port"], seconds=20)
        thread.join(20)
    assert len(connections) == 3
    for connection in connections:
        connection.close()


def test_the_error_of_qemu_is_reported(inputs: Props, executable: Executable) -> None:
    executable("qemu-system-x86_64", "import sys; sys.exit('qemu: out of memory')")
    with pytest.raises(PlatformError, match="yard-head: QEMU did not start: qemu: out of memory"):
        VmProvider().create(inputs)


def test_a_dead_switch_is_started_again_and_counted(stack_run: Path) -> None:
    provider, folder = SwitchProvider(), {"folder": str(stack_run)}
    outs = provider.create(folder).outs or {}
    assert provider.diff("id", outs, folder).changes is False
    kill(outs["pid"])
    seen = provider.read("id", outs).outs or {}
    assert seen["running"] is False
    assert provider.diff("id", seen, folder).changes is True
    again = provider.update("id", seen, folder).outs or {}
    assert (again["starts"], again["running"]) == (2, True)
    assert started_under(stack_run) == [again["pid"]]


def test_sockets_are_private_and_have_short_paths(stack_run: Path) -> None:
    SwitchProvider().create({"folder": str(stack_run)})
    sockets = socket_folder(stack_run)
    assert sockets.stat().st_mode & 0o077 == 0
    longest = socket_folder(Path("/very" * 40)) / "switch" / f"{'n' * 36}.qmp"
    assert len(str(longest)) < 100


def test_only_a_created_data_disk_has_a_new_id(tmp_path: Path) -> None:
    provider, path = DiskProvider(), tmp_path / "disks" / "c-head.qcow2"
    made = provider.create({"path": str(path), "gib": 16, "disk_id": None})
    assert made.outs is not None
    assert path.stat().st_size < 1 << 20, "an empty disk takes space"
    Machine(run=tmp_path, name="c-head").remove()
    assert path.exists(), "the removal of a machine must keep its data disk"
    assert not provider.diff(made.id, made.outs, {"path": str(path), "gib": 16}).changes
    assert provider.read(made.id, made.outs).outs == made.outs
    assert provider.diff(made.id, made.outs, {"path": str(path), "gib": 32}).replaces == ["gib"]
    provider.delete(made.id, made.outs)
    assert provider.read(made.id, made.outs).id == ""
    assert provider.create({"path": str(path), "gib": 16}).outs["disk_id"] != made.outs["disk_id"]  # type: ignore[index]
