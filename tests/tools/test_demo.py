"""After an interruption, `make demo` waits until the current phase has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from yard.contract import checkout

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
