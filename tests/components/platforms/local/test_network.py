"""Tests for the private network of the local platform, with a fake QEMU process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from components.platforms.local import machine as qemu
from components.platforms.local.image import GoldenImage
from components.platforms.local.machine import Machine, Macs
from tests.components.platforms.local.conftest import Executable

HARDWARE = qemu.Hardware(accelerator="tcg", vcpus=1, memory_mib=1024, ssh_port=None, niceness=0)
CARDS = Macs(external="52:54:00:aa:bb:0c", private="52:54:00:aa:bb:0d")


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
    with ThreadPoolExecutor(len(machines)) as threads:
        list(threads.map(lambda machine: machine.start(image, HARDWARE, CARDS), machines))
    assert log.read_text().split() == ["begins", "ends"] * len(machines)
