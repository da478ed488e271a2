"""`make demo`, `make clean` and `make down`, and protected resources, which `destroy` spares."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from components.plan.check import Computer
from components.platforms.local.image import find_image, hold_image
from tests.conftest import MakeProgram
from tools import demo, down
from tools.clean import clean
from tools.stack import refuse_protected
from trainyard import checkout
from trainyard.errors import StackError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with tools, and with an unused image, an image that a machine's disk uses, and a baked image."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRAINYARD_CACHE", str(cache))
    for name in ("0a", "0b", "trainyard-debian-13-0123456789abcdef"):
        (cache / "images" / name).mkdir(parents=True)
        (cache / "images" / name / "manifest.json").write_text("{}")
    (cache / "images" / "0a" / "gold.qcow2").write_bytes(b"x" * 300_000)
    (cache / "mypy").mkdir()
    (cache / "mypy" / "file").write_bytes(b"x" * 200_000)
    (cache / "notes.txt").write_text("not from this project")
    disk = tmp_path / "disk.qcow2"
    disk.touch()
    used = find_image("0b")
    assert used is not None
    hold_image(used, disk)
    return cache


def test_clean_deletes_the_cache_and_says_what(cache: Path) -> None:
    lines = list(clean(cache))
    assert sorted(path.name for path in cache.iterdir()) == ["images", "notes.txt"]
    assert sorted(path.name for path in (cache / "images").iterdir()) == ["0b", "trainyard-debian-13-0123456789abcdef"]
    assert [line.partition(" (")[0] for line in lines[:4]] == [
        f"deleted {cache / 'mypy'}",
        f"deleted {cache / 'images' / '0a'}",
        f"kept {cache / 'images' / '0b'}",
        f"kept {cache / 'images' / 'trainyard-debian-13-0123456789abcdef'}",
    ]
    assert lines[-1].startswith("deleted 0.5 MB in ")
    assert [line.partition(" in ")[0] for line in clean(cache / "absent")] == ["deleted 0.0 MB"]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder with the files that remain after a stack is removed."""
    monkeypatch.setattr(checkout, "state", lambda: tmp_path)
    for name in ("state/.pulumi/stacks/trainyard", "state/.pulumi/backups", "pulumi-home/logs", "pulumi-home/plugins"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "state/.pulumi/stacks/trainyard/local.json.bak").write_text("{}")
    return tmp_path


def test_state_is_removed_after_the_last_stack(state: Path) -> None:
    other = state / "state/.pulumi/stacks/trainyard/azure-h100.json"
    other.write_text("{}")
    down.remove_empty_state()
    assert (state / "state/.pulumi/backups").exists()
    other.unlink()
    down.remove_empty_state()
    assert not (state / "state/.pulumi").exists()
    assert [path.name for path in (state / "pulumi-home").iterdir()] == ["plugins"]


def resource(name: str, **more: Any) -> dict[str, Any]:
    return {"urn": f"urn:pulumi:s::trainyard::a$gcp:compute/disk:Disk::{name}", "type": "gcp:compute/disk:Disk", **more}


@pytest.fixture
def exported(tmp_path: Path, program: MakeProgram) -> Path:
    """The state file that a fake `pulumi stack export` prints."""
    program("pulumi", f'[ "$1 $2" = "stack export" ] && cat {tmp_path}/state')
    return tmp_path / "state"


def test_protected_resources_are_listed_with_both_fixes(exported: Path) -> None:
    with pytest.raises(StackError, match="the state cannot be read"):
        refuse_protected("opt", os.environ)
    resources = [resource("opt-head"), resource("opt-shared", protect=True), resource("opt-gpu-0", protect=False)]
    exported.write_text(json.dumps({"version": 3, "deployment": {"resources": resources}}))
    with pytest.raises(StackError) as refused:
        refuse_protected("opt", os.environ)
    message = str(refused.value)
    assert "stack 'opt' has protected data: opt-shared (gcp:compute/disk:Disk). Nothing was deleted." in message
    assert "--exclude-protected" in message
    assert "protect_storage to false in stacks/Pulumi.opt.yaml" in message


@pytest.mark.parametrize("deployment", [{}, {"resources": []}, {"resources": [resource("opt-head")]}, None])
def test_stack_without_protected_resources_is_accepted(exported: Path, deployment: Any) -> None:
    exported.write_text(json.dumps({"version": 3, "deployment": deployment}))
    refuse_protected("opt", os.environ)


_PHASE = """
import os, signal, time
from pathlib import Path
try:
    Path("started").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(0.3)
    Path("ended").touch()
"""
_DEMO = "from tools.demo import Phases; Phases().run('a phase', 'phase'); print('not reached')"


def test_interrupted_demo_waits_for_its_phase(tmp_path: Path) -> None:
    (tmp_path / "phase.py").write_text(_PHASE)
    running = subprocess.Popen(
        [sys.executable, "-c", _DEMO],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{checkout.ROOT}{os.pathsep}{tmp_path}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "started").exists():
        assert running.poll() is None
    os.killpg(running.pid, signal.SIGINT)
    out, errors = running.communicate(timeout=30)
    assert (tmp_path / "ended").exists()
    assert "interrupted in a phase" in errors
    assert running.returncode == 128 + signal.SIGINT
    assert out == ""


def test_used_ports_stop_the_demo_before_the_set_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computer = Computer(free_memory=lambda _: 1 << 20, used_ports=lambda _, ports: [22101] if 22101 in ports else [])
    monkeypatch.setattr(demo, "THIS_COMPUTER", computer)
    monkeypatch.setattr(sys, "argv", ["demo", "--check"])
    assert demo.main() == 1
    errors = capsys.readouterr().err
    assert errors.startswith("make demo: 1 problem in stacks/Pulumi.local.yaml; nothing was changed.\n")
    assert "stacks/Pulumi.local.yaml:cluster.platform.ssh_port_base: port 22101 on 127.0.0.1 is in use" in errors
    assert "Fix: write `ssh_port_base: 22400` there" in errors


def test_the_demo_checks_before_it_builds_the_image() -> None:
    setup = (checkout.ROOT / "tools/setup.sh").read_text()
    assert setup.index("tools.demo --check") < setup.index('start image "Golden image"')
    assert "tools/setup.sh --demo;" in (checkout.ROOT / "Makefile").read_text()
