"""The dataset package as a process: interrupts, full disks, and independence from the project."""

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

from tests.yard.data.dataset_samples import FOLDER, expected, lines, request, tokens_of
from yard.data.dataset.prepare import prepare

pytestmark = pytest.mark.engine


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(lines(["some words and more of them"] * 20_000))
    return path


Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that starts a copy of the package without the rest of the project."""
    shutil.copytree(FOLDER, tmp_path / "travelled" / "dataset", ignore=shutil.ignore_patterns("__pycache__"))

    def start(*arguments: str, limit: str = "unlimited") -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", f'ulimit -f {limit}; exec "$@"', "-", sys.executable, "-m", "dataset", *arguments],
            cwd=tmp_path / "travelled",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.mark.parametrize("how", ["hang up", "interrupt"])
def test_an_interrupted_run_ends_and_can_be_continued(how: str, large: Path, run: Run, tmp_path: Path) -> None:
    arguments = ("--leash", "prepare", str(large), str(tmp_path / "out"), "--chunk", "10K", "--processes", "2")
    process = run(*arguments)
    while not list(tmp_path.glob("out.parts/[0-9]*.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    if how == "interrupt":
        process.send_signal(signal.SIGINT)
    # Closes stdin. Stderr is only closed after all child processes have ended.
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "interrupted; finished chunks were kept" in stderr
    assert not list(tmp_path.glob("out.[bi]*"))
    kept = len(list(tmp_path.glob("out.parts/[0-9]*.json")))
    assert kept > 0
    progress: list[int] = []
    plan = json.loads((tmp_path / "out.parts" / "plan.json").read_bytes())
    prepare(request(large, tmp_path / "out", chunk=plan["chunk"]), lambda done, _: progress.append(done))
    assert progress[0] >= (kept - 1) * 10_000
    assert tokens_of(tmp_path / "out") == expected(["some words and more of them"] * 20_000)


def test_a_full_disk_is_reported_and_leaves_no_files(large: Path, run: Run, tmp_path: Path) -> None:
    process = run("prepare", str(large), str(tmp_path / "out"), limit="100")
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "free disk space or correct the permissions" in stderr
    assert not list(tmp_path.glob("**/*.tmp"))
    assert not list(tmp_path.glob("out.[bi]*"))


def test_a_failed_write_is_reported_with_a_fix(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    process = run("synth", str(tmp_path / "file" / "out"))
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 1
    assert stderr.startswith(f"dataset: {tmp_path}/file/out.idx: Not a directory. Fix: ")


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.py")), ids=lambda file: file.name)
def test_the_package_imports_only_the_standard_library(file: Path) -> None:
    """The package must run on hosts with Python 3.10 and without this project."""
    tree = ast.parse(file.read_text(), feature_version=(3, 10))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            assert all(alias.name.split(".")[0] in sys.stdlib_module_names for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            assert (node.module or "").split(".")[0] in sys.stdlib_module_names
