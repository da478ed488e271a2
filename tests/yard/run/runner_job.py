"""A runner's job, as seen in its run folder."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yard.run.runner.agent import marked

PATIENCE = 40.0


@dataclass
class Job:
    """A job's run folder on the head."""

    run_dir: Path
    id: int = 0

    def submit(self) -> Job:
        line = [sys.executable, "-m", "runner", "submit", str(self.run_dir)]
        self.id = int(subprocess.run(line, cwd=self.run_dir, capture_output=True, text=True, check=True).stdout)
        return self

    @property
    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run_dir / "state.json").read_text())
        return found

    @property
    def log(self) -> str:
        return (self.run_dir / "job.log").read_text() if (self.run_dir / "job.log").exists() else ""

    def pids(self) -> list[int]:
        return sorted(marked([f"RUN_DIR={self.run_dir}"]))

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> float:
        """Wait until `condition` returns a true value. Return the elapsed seconds."""
        begin = time.monotonic()
        while not condition():
            assert time.monotonic() - begin < seconds, f"{self.state}\n{self.log}\n{self.runner_log}"
            time.sleep(0.05)
        return time.monotonic() - begin

    @property
    def runner_log(self) -> str:
        return (self.run_dir / "runner.log").read_text()

    def up(self, start: int, ranks: int) -> None:
        self.until(lambda: all((self.run_dir / f"up-{start}-{rank}").exists() for rank in range(ranks)))

    def ended(self) -> str:
        self.until(lambda: self.state["state"] not in {"PENDING", "RUNNING"})
        assert self.pids() == []
        return str(self.state["state"])

    def rank_pid(self, rank: int) -> int:
        """Return the id of a rank's first process, which starts the other processes."""
        return min(self.rank_pids(rank))

    def rank_pids(self, rank: int) -> list[int]:
        """Return the ids of all processes of a rank."""
        mine = set(marked([f"RANK={rank}"]))
        return [pid for pid in self.pids() if pid in mine]
