"""The recorded commits of jobs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from yard.run.jobs import with_commits
from yard.run.queue import Job


def job(number: int, run_dir: str) -> Job:
    return Job(
        id=number, name="x", user="ops", group="gpu", state="RUNNING", reason="None", nodes=1, node_list="a",
        elapsed_s=1, restarts=0, exit_code=0, run_dir=run_dir,
    )  # fmt: skip


def remote(shared: Path) -> Any:
    """Return a connection that runs commands on this machine."""

    def run(line: str) -> str:
        return subprocess.run(["bash", "-c", line], check=True, capture_output=True, text=True).stdout

    return SimpleNamespace(run=run, stack=SimpleNamespace(cluster=SimpleNamespace(shared_path=str(shared))))


def test_elements_of_an_array_have_its_commit(tmp_path: Path) -> None:
    run, other = tmp_path / "jobs" / "sweep-1", tmp_path / "elsewhere"
    for folder in (run, other, tmp_path / "jobs" / ".ids"):
        folder.mkdir(parents=True)
    for folder in (run, other):
        (folder / "snapshot.json").write_text('{"commit": "abc", "modified": false}\n')
    (tmp_path / "jobs" / ".ids" / "12").symlink_to("../sweep-1")
    jobs = [job(12, "/home/ops"), job(13, str(run)), job(14, str(other))]
    assert [row["commit"] for row in with_commits(remote(tmp_path), jobs)] == ["abc", "abc", None]
