"""Runs of the dataset package as it travels: interrupted, short of disk, and alone on a host."""

from __future__ import annotations

import ast
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.dataset.prepare import prepare
from tests.jobs.dataset_samples import FOLDER, expected, lines, tokens_of, wish


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(["some words and more of them"] * 20_000))
    return path


Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Starts the package as it runs on a host: alone in a folder."""
    shutil.copytree(FOLDER, tmp_path / "travelled" / "dataset", ignore=shutil.ignore_patterns("__pycache__"))

    def start(*words: str, limit: str = "unlimited") -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "-", sys.executable, "-m", "dataset", *words],
            cwd=tmp_path / "travelled",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.mark.parametrize("how", ["hang up", "interrupt"])
def test_an_interrupted_run_leaves_no_process_and_goes_on(how: str, large: Path, run: Run, tmp_path: Path) -> None:
    words = ("--leash", "prepare", str(large), str(tmp_path / "out"), "--chunk", "10K", "--processes", "2")
    process = run(*words)
    while not list(tmp_path.glob("out.parts/[0-9]*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    if how == "interrupt":
        process.send_signal(signal.SIGINT)
    # Hangs up, and sees the end of its words only when no child holds them open any more.
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted; what is finished was kept" in said
    assert not list(tmp_path.glob("out.[bi]*"))
    kept = len(list(tmp_path.glob("out.parts/[0-9]*.json")))
    assert kept > 0
    told: list[int] = []
    plan = json.loads((tmp_path / "out.parts" / "plan.json").read_bytes())
    prepare(wish(large, tmp_path / "out", chunk=plan["chunk"]), lambda done, _: told.append(done))
    assert told[0] >= (kept - 1) * 10_000
    assert tokens_of(tmp_path / "out") == expected(["some words and more of them"] * 20_000)


def test_a_full_disk_is_said_and_nothing_half_made_stays(large: Path, run: Run, tmp_path: Path) -> None:
    process = run("prepare", str(large), str(tmp_path / "out"), limit="100")
    _, said = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "make room, and start again" in said
    assert not list(tmp_path.glob("**/*.tmp"))
    assert not list(tmp_path.glob("out.[bi]*"))


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_the_package_can_travel(file: Path) -> None:
    """It runs on hosts with Python 3.10 and nothing of this project."""
    tree = ast.parse(file.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] in sys.stdlib_module_names
