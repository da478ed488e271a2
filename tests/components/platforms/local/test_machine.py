"""A local machine's QEMU command line, seed disk and connection to the switch, and the KVM probe with a fake QEMU."""

from __future__ import annotations

import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from components.platforms.local import machine as qemu
from components.platforms.local import paths, probe
from components.platforms.local.image import GoldenImage
from components.platforms.local.machine import Machine, Macs, macs, meta_data, network_config, write_seed
from tests.components.platforms.local.conftest import Executable
from tests.conftest import CheckGolden

EMULATED = qemu.Hardware(accelerator="tcg", vcpus=1, memory_mib=1024, ssh_port=22100, niceness=3)
CARDS = Macs(external="52:54:00:aa:bb:0c", private="52:54:00:aa:bb:0d")


def command(hardware: qemu.Hardware) -> list[str]:
    files = paths.MachineFiles(run=Path("/run"), name="yard-head")
    return qemu.qemu_command(files, hardware, CARDS, Path("/cache/vmlinux"))


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_the_command_line_is_the_golden_one(
    accelerator: str, golden: CheckGolden, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The name of the real folder depends on the user.
    monkeypatch.setattr(paths, "socket_folder", lambda run: Path("/sockets"))
    words = command(replace(EMULATED, accelerator=accelerator))
    golden(f"local-machine/{accelerator}.txt", "\n".join(map(shlex.quote, words)) + "\n")
    # Machines listen only on loopback.
    networks = [words[index + 1] for index, word in enumerate(words) if word == "-netdev"]
    assert networks == ["user,id=ext,ipv6=off,hostfwd=tcp:127.0.0.1:22100-:22", "vde,id=clu,sock=/sockets/switch"]
    assert not [word for word in words if "mcast" in word or "vnc" in word]


def test_ubuntu_boots_from_a_virtio_disk_with_apparmor(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"suite": "noble"}')
    files = paths.MachineFiles(run=Path("/run"), name="yard-head")
    words = qemu.qemu_command(files, EMULATED, CARDS, tmp_path / "vmlinux")
    options = words[words.index("-append") + 1].split()
    assert {"root=/dev/vda", "lsm=capability,apparmor"} <= set(options)
    # The kernel numbers virtio disks in the order of their PCI devices.
    assert next(word for word in words if word.startswith(("virtio-blk", "nvme"))) == "virtio-blk-pci,drive=root"


def test_the_data_disk_has_the_serial_number_for_udev() -> None:
    words = command(replace(EMULATED, data_disk=Path("/run/disks/yard-head.qcow2")))
    # udev: ENV{ID_SERIAL} of a virtio disk is its serial number, and the link is /dev/disk/by-id/virtio-$env{ID_SERIAL}
    # (systemd, rules.d/60-persistent-storage.rules).
    assert "virtio-blk-pci,drive=data,serial=data" in words
    assert [word for word in words if "/run/disks/yard-head.qcow2" in word and "id=data" in word]


def test_machines_connect_to_the_switch_one_after_another(
    image: GoldenImage, executable: Executable, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    executable(
        "qemu-system-x86_64",
        f"""
        import time
        for word in ("begins", "ends"):
            with open({str(log)!r}, "a") as log:
                print(word, file=log)
            time.sleep(0.2)
        """,
    )
    machines = [Machine(run=tmp_path, name=f"yard-gpu-{index}") for index in range(3)]
    for machine in machines:
        machine.folder.mkdir()
    with ThreadPoolExecutor(len(machines)) as threads:
        list(threads.map(lambda machine: machine.start(image, replace(EMULATED, ssh_port=None), CARDS), machines))
    assert log.read_text().split() == ["begins", "ends"] * len(machines)


def test_addresses_are_stable_unique_and_locally_administered() -> None:
    names = [f"yard-gpu-{index}" for index in range(64)]
    cards = [macs("local", name) for name in names]
    assert cards == [macs("local", name) for name in names]
    every = [mac for card in cards for mac in (card.external, card.private)]
    assert len(set(every)) == 128
    assert all(mac.startswith("52:54:00:") and len(mac) == 17 for mac in every)
    assert macs("other", "yard-gpu-0") != cards[0]


def test_network_interfaces_match_by_mac_address() -> None:
    cards = macs("local", "yard-head")
    config = json.loads(network_config(cards, IPv4Interface("10.77.0.4/20")))
    ext0, clu0 = config["ethernets"]["ext0"], config["ethernets"]["clu0"]
    assert ext0["match"] == {"macaddress": cards.external}
    assert ext0["addresses"] == ["10.0.2.15/24"]
    assert ext0["routes"] == [{"to": "0.0.0.0/0", "via": "10.0.2.2"}]
    assert clu0 == {"match": {"macaddress": cards.private}, "set-name": "clu0", "addresses": ["10.77.0.4/20"]}


@pytest.mark.parametrize("user_data", ["#cloud-config\nhostname: x\n", "#cloud-config\n# \u00e9\n" + "x: y\n" * 9000])
def test_the_seed_disk_contains_its_files(tmp_path: Path, user_data: str) -> None:
    # An external program reads the image so that the test does not depend on the code that wrote the image.
    disk = tmp_path / "seed.img"
    write_seed(disk, user_data, meta_data("abc", "yard-head"), "{}")
    label = subprocess.run(["isoinfo", "-d", "-i", disk], capture_output=True, text=True, check=True).stdout
    assert "Volume id: cidata" in label
    read = {
        name: subprocess.run(["isoinfo", "-R", "-x", f"/{name}", "-i", disk], capture_output=True, check=True).stdout
        for name in ("user-data", "meta-data", "network-config")
    }
    assert read["user-data"].decode() == user_data
    assert json.loads(read["meta-data"]) == {"instance-id": "abc", "local-hostname": "yard-head", "dsmode": "local"}
    assert [path.name for path in tmp_path.iterdir()] == ["seed.img"]


KERNEL = Path("/nonexistent/vmlinux")
SPEAKS = "import time; print('Linux version 6', flush=True); time.sleep(60)"
SILENT = "import time; time.sleep(60)"
BROKEN = "import sys; sys.exit('qemu: failed to set MSR 0x10a')"


@pytest.fixture(autouse=True)
def short_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "PROBE_SECONDS", 1.0)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("program", "accelerator", "reason"),
    [
        (SPEAKS, "kvm", "succeeded"),
        (SILENT, "tcg", "printed nothing for 1 s"),
        (BROKEN, "tcg", "failed to set MSR 0x10a"),
    ],
)
def test_kvm_is_chosen_only_if_the_guest_prints(
    tmp_path: Path, executable: Executable, program: str, accelerator: str, reason: str
) -> None:
    device = tmp_path / "kvm"
    device.touch()
    choice = probe.probe(KERNEL, str(executable("fake-qemu", program)), device)
    assert choice.accelerator == accelerator
    assert reason in choice.reason


def test_kvm_is_not_probed_without_need(tmp_path: Path) -> None:
    choice = probe.probe(KERNEL, "/nonexistent/qemu", tmp_path / "kvm")
    assert (choice.accelerator, "does not exist" in choice.reason) == ("tcg", True)
    assert probe.choose("kvm", KERNEL, "/nonexistent/qemu").accelerator == "kvm"
    assert probe.choose("tcg", KERNEL, "/nonexistent/qemu").accelerator == "tcg"


def test_the_probe_result_is_cached_until_a_reboot(
    tmp_path: Path, executable: Executable, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "kvm"
    device.touch()
    answers = iter([probe.Choice(accelerator="kvm", reason="first"), probe.Choice(accelerator="tcg", reason="second")])
    monkeypatch.setattr(probe, "probe", lambda *_: next(answers))
    assert [probe.choose("auto", KERNEL).reason for _ in range(2)] == ["first", "first"]
    kept = tmp_path / "cache" / "kvm-probe.json"
    kept.write_text(json.dumps({**json.loads(kept.read_text()), "boot_id": "another"}))
    assert probe.choose("auto", KERNEL).reason == "second"


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"boot_id": 1, "choice": {"x": 1}}'])
def test_a_damaged_cache_file_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(probe, "probe", lambda *_: probe.Choice(accelerator="tcg", reason="asked"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kvm-probe.json").write_text(damage)
    assert probe.choose("auto", KERNEL).reason == "asked"
