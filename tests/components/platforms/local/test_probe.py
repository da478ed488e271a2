"""Tests for the KVM probe, with fake QEMU programs for a working, a silent and a broken KVM."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.platforms.local import probe
from tests.components.platforms.local.conftest import Executable

pytestmark = pytest.mark.engine

KERNEL = Path("/nonexistent/vmlinux")
SPEAKS = "import time; print('Linux version 6', flush=True); time.sleep(60)"
SILENT = "import time; time.sleep(60)"
BROKEN = "import sys; sys.exit('qemu: failed to set MSR 0x10a')"


@pytest.fixture(autouse=True)
def short_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "PROBE_SECONDS", 1.0)


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
