"""Persistence mode and CUDA's device files, with recorded commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import Ran, Sandbox


def run(root: Path, answers: dict[str, str] | None = None, **env: str) -> Ran:
    """Run the stage on a node with a loaded driver and without CUDA's device files."""
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc/devices").write_text("Character devices:\n195 nvidia\n511 nvidia-uvm\n")
    node = Sandbox(root, ("systemctl", "timeout", "modprobe", "mknod"), answers or {})
    return node.run("33-cuda", **{"GPUS": "1", "GPU_DEVICE": "/dev/nvidia"} | env)


def test_gpus_of_an_image_driver_stay_initialized(tmp_path: Path) -> None:
    """Ubuntu's unit runs without persistence mode and stops when nothing needs it."""
    ran = run(tmp_path)
    assert ran.code == 0, ran.errors
    steps = ["systemctl daemon-reload", "systemctl start nvidia-persistenced.service", "timeout 120 nvidia-smi -pm 1"]
    assert [line for line in ran.commands if line in steps] == steps
    drop_in = tmp_path / "etc/systemd/system/nvidia-persistenced.service.d/trainyard.conf"
    assert drop_in.read_text() == "[Unit]\nStopWhenUnneeded=no\n"
    again = run(tmp_path)
    assert "systemctl daemon-reload" not in again.commands


def test_image_without_the_daemon_gets_persistence_mode(tmp_path: Path) -> None:
    ran = run(tmp_path, {"systemctl cat": "1 "})
    assert ran.code == 0, ran.errors
    assert "timeout 120 nvidia-smi -pm 1" in ran.commands
    assert not [line for line in ran.commands if line.startswith("systemctl start")]


def test_persistence_mode_of_an_existing_host_is_unchanged(tmp_path: Path) -> None:
    ran = run(tmp_path, TEST_LEDGER="/ledger")
    assert ran.code == 0, ran.errors
    assert not [line for line in ran.commands if "-pm" in line or "persistenced" in line]


def test_persistence_mode_follows_an_installed_driver(tmp_path: Path) -> None:
    ran = run(tmp_path, TEST_LEDGER="/ledger", DRIVER_FROM="install")
    assert "timeout 120 nvidia-smi -pm 1" in ran.commands


@pytest.mark.parametrize("env", [{"GPUS": "0"}, {"GPU_DEVICE": "/dev/fakegpu"}, {"DRIVER_FROM": "none"}])
def test_nodes_without_a_driver_are_unchanged(tmp_path: Path, env: dict[str, str]) -> None:
    ran = run(tmp_path, None, **env)
    assert (ran.code, ran.commands) == (0, [])


@pytest.mark.parametrize("existing", ["", "/ledger"])
def test_uvm_devices_are_created_if_they_are_missing(tmp_path: Path, existing: str) -> None:
    ran = run(tmp_path, TEST_LEDGER=existing)
    assert ran.code == 0, ran.errors
    made = [line for line in ran.commands if line.startswith(("modprobe nvidia-uvm", "mknod"))]
    assert made == [
        "modprobe nvidia-uvm",
        "mknod -m 0666 /dev/nvidia-uvm c 511 0",
        "mknod -m 0666 /dev/nvidia-uvm-tools c 511 1",
    ]


def test_driver_without_the_uvm_module_fails_the_stage(tmp_path: Path) -> None:
    ran = run(tmp_path, {"modprobe nvidia-uvm": "1 "})
    assert (ran.code, ran.output[-1].startswith("fail modprobe nvidia-uvm fails")) == (1, True)


@pytest.mark.parametrize(
    ("exists", "words"), [(False, "the job user cannot open"), (True, "/dev/nvidia-none0 is missing")]
)
def test_node_is_not_ready_if_jobs_cannot_open_uvm(tmp_path: Path, exists: bool, words: str) -> None:
    """The second case ends at the next check. No machine has its devices, also not one with real GPUs."""
    (tmp_path / "dev").mkdir()
    if exists:
        (tmp_path / "dev/nvidia-uvm").touch()
    env = {"SHARED_SOURCE": "10.0.0.9:/shared", "GPUS": "1", "GPU_DEVICE": "/dev/nvidia-none", "GPU_TYPE": "a100"}
    ran = Sandbox(tmp_path, ("timeout",), {}).run("90-health", ROLE="worker", NODE="n", **env)
    assert (ran.code, words in ran.output[-1]) == (1, True), (ran.output, ran.errors)
