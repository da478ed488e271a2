"""Queries for job state files on a cluster without a scheduler."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from yard.run.query import cancel


def identity_of(pid: int) -> dict[str, Any]:
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return {"pid": pid, "ticks": ticks, "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip()}


def write_state(run_dir: Path, runner: dict[str, Any] | None) -> None:
    fresh = run_dir / "fresh"
    fresh.write_text(json.dumps({"state": "PENDING", "runner": runner, "submitted": time.time()}))
    fresh.replace(run_dir / "state.json")


def test_cancellation_waits_for_the_start_of_the_runner(tmp_path: Path) -> None:
    write_state(tmp_path, None)
    # A shell starts background commands with SIGINT ignored. `env` restores the default action.
    with subprocess.Popen(["env", "--default-signal=INT", "sleep", "60"]) as runner:
        started = threading.Timer(0.3, write_state, (tmp_path, identity_of(runner.pid)))
        started.start()
        cancel(tmp_path)
        started.join()
        try:
            assert runner.wait(5) == -signal.SIGINT
        finally:
            runner.kill()
