"""The whole life of a machine and its switch, with a real process in QEMU's place and the engine's verbs in order."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from components.errors import PlatformError
from components.platforms.local.image import GoldenImage, image_id
from components.platforms.local.paths import socket_folder
from components.platforms.local.process import started_under, wait_gone
from components.platforms.local.provider import VM_REPLACED_BY, VM_RESTARTED_BY, SwitchProvider, VmProvider
from components.platforms.local.sweep import sweep_run
from components.platforms.local.vm import Machine
from tests.platforms.local.conftest import HOST_KEY, Executable

Props = dict[str, Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def inputs(stack_run: Path) -> Props:
    """A machine's inputs, and the switch it plugs into running."""
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
        "switch_starts": 1,
    }


@pytest.fixture
def created(inputs: Props) -> Props:
    """The state of a machine that was created."""
    outs = VmProvider().create(inputs).outs
    assert outs is not None
    return outs


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_gone(pid, 5)


def test_creating_gives_a_running_machine_and_its_host_key(created: Props, stack_run: Path) -> None:
    assert created["host_key"] == HOST_KEY
    assert created["boots"] == 1
    assert created["running"] is True
    assert created["address"] == "127.0.0.1"
    assert created["accelerated_by"] == "tcg"
    assert created["pid"] == Machine(run=stack_run, name="yard-head").pid
    arguments = Path(f"/proc/{created['pid']}/cmdline").read_text().split("\0")
    assert f"user,id=ext,hostfwd=tcp:127.0.0.1:{created['ssh_port']}-:22" in arguments


def test_a_machine_that_runs_needs_nothing(created: Props, inputs: Props) -> None:
    assert VmProvider().diff("id", VmProvider().read("id", created).outs or {}, inputs).changes is False


def test_a_machine_that_died_is_seen_and_started_again_on_its_disk(created: Props, inputs: Props) -> None:
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


@pytest.mark.parametrize("vanished", ["disk", "image"])
def test_a_machine_without_its_disk_is_gone(created: Props, image: GoldenImage, vanished: str) -> None:
    lost = image.folder / "manifest.json" if vanished == "image" else Path(created["folder"], "yard-head/disk.qcow2")
    lost.unlink()
    assert VmProvider().read("id", created).id == ""


@pytest.mark.parametrize("key", VM_REPLACED_BY)
def test_what_a_machine_is_made_of_makes_a_new_one(created: Props, inputs: Props, key: str) -> None:
    diff = VmProvider().diff("id", created, {**inputs, key: "changed"})
    assert (diff.changes, diff.replaces, diff.delete_before_replace) == (True, [key], True)


@pytest.mark.parametrize("key", VM_RESTARTED_BY)
def test_what_a_start_decides_needs_only_a_start(created: Props, inputs: Props, key: str) -> None:
    diff = VmProvider().diff("id", created, {**inputs, key: "changed"})
    assert (diff.changes, diff.replaces) == (True, [])


def test_every_input_is_either_replaced_or_restarted(inputs: Props) -> None:
    assert sorted(inputs) == sorted((*VM_REPLACED_BY, *VM_RESTARTED_BY))


def test_creating_over_the_leftover_of_an_interrupted_create(created: Props, inputs: Props) -> None:
    again = VmProvider().create(inputs).outs or {}
    assert again["machine_id"] != created["machine_id"]
    assert started_under(Path(inputs["folder"], "yard-head")) == [again["pid"]]


def test_deleting_leaves_nothing_and_may_be_repeated(created: Props, inputs: Props) -> None:
    for _ in range(2):
        VmProvider().delete("id", created)
        assert not Path(inputs["folder"], "yard-head").exists()
        assert started_under(Path(inputs["folder"], "yard-head")) == []


def test_deleting_the_switch_ends_machines_that_no_state_knows(created: Props, inputs: Props) -> None:
    run = Path(inputs["folder"])
    for _ in range(2):
        SwitchProvider().delete("id", {"folder": str(run)})
        assert started_under(run) == []
        assert not run.exists()
        assert not socket_folder(run).exists()


def test_a_sweep_finds_machines_whose_files_are_gone(created: Props, inputs: Props) -> None:
    run = Path(inputs["folder"])
    (run / "yard-head" / "qemu.pid").unlink()
    assert sweep_run(run) == 2
    assert started_under(run) == []


def test_a_taken_port_is_named_before_anything_boots(inputs: Props) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", inputs["ssh_port"]))
        other.listen()
        with pytest.raises(PlatformError, match=rf"port {inputs['ssh_port']} .* is taken .*ssh_port_base"):
            VmProvider().create(inputs)
    assert started_under(Path(inputs["folder"], "yard-head")) == []


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("out of luck\n", "died while it booted"),
        ("Kernel panic - not syncing: VFS " * 3 + "\n", "has a kernel panic"),
        ("trainyard-hostkey: ssh-ed25519 AAAAhalf", "died while it booted"),
    ],
)
def test_a_failed_boot_shows_the_console_and_leaves_no_process(
    inputs: Props, console: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    console.write_text(said)
    monkeypatch.setenv("FAKE_DIES", "1" if "died" in reason else "")
    with pytest.raises(PlatformError) as caught:
        VmProvider().create(inputs)
    assert reason in str(caught.value)
    assert said.strip() in str(caught.value)
    assert started_under(Path(inputs["folder"], "yard-head")) == []


def test_a_kernel_that_stumbles_once_starts_again_by_itself(created: Props, inputs: Props) -> None:
    machine = Machine(run=Path(inputs["folder"]), name="yard-head")
    since = machine.console_size()
    with machine.console.open("a") as log:
        log.write("Kernel panic - not syncing: Fatal exception\ntrainyard-hostkey: ssh-ed25519 AAAAagain\n")
    assert machine.wait_host_key(since, seconds=5) == "ssh-ed25519 AAAAagain"


def test_a_kernel_is_given_up_that_panics_time_and_again(created: Props, inputs: Props) -> None:
    machine = Machine(run=Path(inputs["folder"]), name="yard-head")
    since = machine.console_size()
    for more, reason in ((2, "no host key in time"), (1, "has a kernel panic")):
        with machine.console.open("a") as log:
            log.write("Kernel panic - not syncing: Fatal exception\n" * more)
        with pytest.raises(PlatformError, match=reason):
            machine.wait_host_key(since, seconds=0.1)


def test_a_start_that_takes_too_long_is_given_up(inputs: Props, created: Props) -> None:
    machine = Machine(run=Path(inputs["folder"]), name="yard-head")
    with pytest.raises(PlatformError, match="no host key in time"):
        machine.wait_host_key(since=machine.console_size(), seconds=0.1)


def test_qemu_that_refuses_says_why(inputs: Props, executable: Executable) -> None:
    executable("qemu-system-x86_64", "import sys; sys.exit('qemu: out of memory')")
    with pytest.raises(PlatformError, match="yard-head: QEMU did not start: qemu: out of memory"):
        VmProvider().create(inputs)


@pytest.mark.parametrize(
    ("key", "value"), [("memory_mib", 100), ("vcpus", 0), ("ssh_port", 22), ("ssh_port", 70000), ("accelerator", "hvf")]
)
def test_inputs_that_no_machine_could_have_are_refused(inputs: Props, key: str, value: Any) -> None:
    checked = VmProvider().check({}, {**inputs, key: value})
    assert [failure.property for failure in checked.failures] == [key]
    assert VmProvider().check({}, inputs).failures == []


def test_a_switch_that_died_is_started_again_and_counted(stack_run: Path) -> None:
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


def test_a_switch_without_its_folder_is_gone(stack_run: Path) -> None:
    assert SwitchProvider().read("id", {"folder": str(stack_run)}).id == ""


def test_sockets_belong_to_their_owner_alone_and_have_short_names(stack_run: Path) -> None:
    SwitchProvider().create({"folder": str(stack_run)})
    sockets = socket_folder(stack_run)
    assert sockets.stat().st_mode & 0o077 == 0
    longest = socket_folder(Path("/very" * 40)) / "switch" / f"{'n' * 36}.qmp"
    assert len(str(longest)) < 100
