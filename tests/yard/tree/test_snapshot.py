"""The recorded state of the working tree."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import yard.tree.snapshot
from tests.yard.conftest import FakeStack, MakeProgram
from tests.yard.test_cli import yard as run_yard
from yard.tree.snapshot import take_snapshot


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with a commit, a changed file, a changed secret, and untracked files."""
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    git(folder, "init", "-q")
    for name in ("train.py", ".env", "sub/other.py"):
        (folder / name).write_text("before\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    (folder / "train.py").write_text("after\n")
    (folder / ".env").write_text("TOKEN=hf_secret\n")
    (folder / "new.py").write_text("TOKEN=hf_other\n")
    return folder


def test_snapshot_has_the_commit_and_the_changes(tree: Path) -> None:
    found = take_snapshot(tree / "sub")
    assert found is not None
    assert found.commit == git(tree, "rev-parse", "HEAD")
    assert found.title == f"{found.commit[:12]} with changes"
    assert "-before\n+after\n" in found.diff
    assert (found.untracked, found.left_out) == (("new.py",), (".env",))
    record = json.loads(found.files()["snapshot.json"])
    assert record["untracked"] == ["new.py"]


def test_snapshot_contains_no_secret(tree: Path) -> None:
    found = take_snapshot(tree)
    assert found is not None
    assert "hf_" not in "".join(found.files().values())


def test_diff_can_be_applied_to_the_commit(tree: Path) -> None:
    found = take_snapshot(tree)
    assert found is not None
    git(tree, "checkout", "-q", "HEAD", "--", "train.py")
    subprocess.run(["git", "-C", str(tree), "apply"], input=found.diff, text=True, check=True)
    assert (tree / "train.py").read_text() == "after\n"


def test_long_diff_ends_after_a_line(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(yard.tree.snapshot, "MOST_BYTES", 2048)
    (tree / "train.py").write_text("a line\n" * 9999)
    found = take_snapshot(tree)
    assert found is not None
    assert (found.complete, found.diff[-8:]) == (False, "+a line\n")
    assert len(found.diff) <= 2048
    assert "larger than 2 KiB" in capsys.readouterr().err


def test_unchanged_tree_has_no_diff(tree: Path) -> None:
    git(tree, "stash", "-qu")
    found = take_snapshot(tree)
    assert found is not None
    assert list(found.files()) == ["snapshot.json"]
    assert found.title == found.commit[:12]


@pytest.mark.parametrize("kind", ["plain", "no commit"])
def test_folder_without_a_commit_has_no_snapshot(kind: str, tmp_path: Path) -> None:
    if kind == "no commit":
        git(tmp_path, "init", "-q")
    assert take_snapshot(tmp_path) is None


def test_configured_diff_program_does_not_run(tree: Path) -> None:
    git(tree, "config", "diff.external", "touch ran; false")
    found = take_snapshot(tree)
    assert found is not None
    assert "+after" in found.diff
    assert not (tree / "ran").exists()


def test_log_shows_the_commit(stack: FakeStack, program: MakeProgram, tree: Path) -> None:
    ids = stack.root / "jobs" / ".ids" / "7"
    ids.mkdir(parents=True)
    found = take_snapshot(tree)
    assert found is not None
    for name, text in found.files().items():
        (ids / name).write_text(text)
    (ids / "job.log").write_text("one\n")
    program("scontrol", "echo JobId=7 JobState=COMPLETED RunTime=00:00:01")
    program("ssh", 'line=${@: -1}; exec bash -c "${line//\\/shared/' + str(stack.root) + '}"')
    assert run_yard("logs", "7")[1] == f"yard: commit {found.title}\none\n"
