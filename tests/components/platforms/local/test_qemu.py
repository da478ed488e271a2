"""Tests for the QEMU command line."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from components.platforms.local import machine as qemu
from components.platforms.local import paths
from components.platforms.local.machine import Macs
from tests.conftest import CheckGolden

EMULATED = qemu.Hardware(accelerator="tcg", vcpus=1, memory_mib=1024, ssh_port=22100, niceness=3)
CARDS = Macs(external="52:54:00:aa:bb:0c", private="52:54:00:aa:bb:0d")


@pytest.fixture(autouse=True)
def _sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the folder for sockets, because its name depends on the user."""
    monkeypatch.setattr(paths, "socket_folder", lambda run: Path("/sockets"))


def command(hardware: qemu.Hardware) -> list[str]:
    files = paths.MachineFiles(run=Path("/run"), name="yard-head")
    return qemu.qemu_command(files, hardware, CARDS, Path("/cache/vmlinux"))


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_the_command_line_is_the_golden_one(accelerator: str, golden: CheckGolden) -> None:
    words = (shlex.quote(word) for word in command(replace(EMULATED, accelerator=accelerator)))
    golden(f"local-machine/{accelerator}.txt", "\n".join(words) + "\n")


def test_machines_listen_on_loopback_only() -> None:
    words = command(EMULATED)
    networks = [words[index + 1] for index, word in enumerate(words) if word == "-netdev"]
    assert networks == ["user,id=ext,hostfwd=tcp:127.0.0.1:22100-:22", "vde,id=clu,sock=/sockets/switch"]
    assert not [word for word in words if "mcast" in word or "vnc" in word]


def test_only_an_emulated_cpu_disables_mitigations() -> None:
    emulated, real = command(EMULATED), command(replace(EMULATED, accelerator="kvm"))
    assert "mitigations=off" in emulated[emulated.index("-append") + 1]
    assert "mitigations" not in real[real.index("-append") + 1]
    assert real[real.index("-cpu") + 1] == "host"


def test_the_data_disk_has_the_serial_number_for_udev() -> None:
    words = command(replace(EMULATED, data_disk=Path("/run/disks/yard-head.qcow2")))
    # udev: ENV{ID_SERIAL} of a virtio disk is its serial number, and the link is /dev/disk/by-id/virtio-$env{ID_SERIAL}
    # (systemd, rules.d/60-persistent-storage.rules).
    assert "virtio-blk-pci,drive=data,serial=data" in words
    assert [word for word in words if "/run/disks/yard-head.qcow2" in word and "id=data" in word]
