"""Exit code and last output line of .ci/run, with a fake `make` that prints pytest summary lines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CHECK = "423 passed, 14 deselected in 5.57s"
CLUSTER = "=============== 12 passed, 1 skipped in 611.20s (0:10:11) ==============="


FULL = "=============== 15 passed in 300.20s (0:05:00) ==============="
BROKEN = "== 2 failed, 10 passed, 1 error in 9.1s =="


@pytest.mark.parametrize(
    ("test", "full", "line", "verdict"),
    [
        ((f"{CHECK}\n{CLUSTER}", 0), (FULL, 0), "450 passed, 0 failed, 1 skipped", 0),
        ((f"{CHECK}\n{BROKEN}", 2), (FULL, 0), "448 passed, 3 failed, 0 skipped", 1),
        ((CHECK, 0), (BROKEN, 1), "433 passed, 3 failed, 0 skipped", 1),
        (("Found 3 errors.", 1), ("", 1), "0 passed, 1 failed, 0 skipped", 1),
        ((CHECK, 2), (FULL, 0), "438 passed, 1 failed, 0 skipped", 1),
        ((CHECK, 0), ("", 2), "423 passed, 1 failed, 0 skipped", 1),
        (("nothing", 0), ("", 0), "0 passed, 1 failed, 0 skipped", 1),
    ],
)
def test_closing_line_counts_all_parts(
    tmp_path: Path, test: tuple[str, int], full: tuple[str, int], line: str, verdict: int
) -> None:
    goals = {"test": test, "test-full": full}
    cases = "".join(f"  {goal}) echo '{said}'; exit {code};;\n" for goal, (said, code) in goals.items())
    (tmp_path / "make").write_text(f"#!/bin/sh\ncase $1 in\n{cases}esac\n")
    (tmp_path / "make").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1], done.returncode) == (line, verdict), done.stderr
