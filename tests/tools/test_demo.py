"""After an interruption, `make demo` waits until the current phase has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from components.plan.check import Computer
from tools import demo
from trainyard import checkout

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
    demo = subprocess.Popen(
        [sys.executable, "-c", _DEMO],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{checkout.ROOT}{os.pathsep}{tmp_path}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (tmp_path / "started").exists():
        assert demo.poll() is None
    os.killpg(demo.pid, signal.SIGINT)
    out, errors = demo.communicate(timeout=30)
    assert (tmp_path / "ended").exists()
    assert "interrupted in a phase" in errors
    assert demo.returncode == 128 + signal.SIGINT
    assert out == ""


def test_used_ports_stop_the_demo_before_the_set_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    computer = Computer(
        free_memory=lambda plan: 1 << 20, used_ports=lambda plan, ports: [port for port in ports if port == 22101]
    )
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
