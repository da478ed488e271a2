"""The command line: reviewed as a whole, and the promises in it that must never change unseen."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from components.platforms.local.qemu import MachineConfig, command
from tests.conftest import CheckGolden

CONFIG = MachineConfig(
    name="yard-head",
    accelerator="tcg",
    vcpus=1,
    memory_mib=1024,
    ssh_port=22100,
    mac_external="52:54:00:aa:bb:0c",
    mac_private="52:54:00:aa:bb:0d",
    kernel=Path("/cache/vmlinux"),
    disk=Path("/run/yard-head/disk.qcow2"),
    seed=Path("/run/yard-head/seed.img"),
    console=Path("/run/yard-head/console.log"),
    pidfile=Path("/run/yard-head/qemu.pid"),
    monitor=Path("/sockets/yard-head.qmp"),
    switch=Path("/sockets/switch"),
    niceness=3,
)


@pytest.mark.parametrize("accelerator", ["kvm", "tcg"])
def test_the_command_line_is_the_reviewed_one(accelerator: str, golden: CheckGolden) -> None:
    words = (shlex.quote(word) for word in command(replace(CONFIG, accelerator=accelerator)))
    golden(f"local-machine/{accelerator}.txt", "\n".join(words) + "\n")


def test_nothing_of_a_machine_listens_beyond_this_host() -> None:
    words = command(CONFIG)
    networks = [words[index + 1] for index, word in enumerate(words) if word == "-netdev"]
    assert networks == ["user,id=ext,hostfwd=tcp:127.0.0.1:22100-:22", "vde,id=clu,sock=/sockets/switch"]
    assert not [word for word in words if "mcast" in word or "vnc" in word]


def test_an_emulated_cpu_carries_no_guard_and_a_real_one_keeps_them_all() -> None:
    emulated, real = command(CONFIG), command(replace(CONFIG, accelerator="kvm"))
    assert "mitigations=off" in emulated[emulated.index("-append") + 1]
    assert "mitigations" not in real[real.index("-append") + 1]
    assert real[real.index("-cpu") + 1] == "host"
