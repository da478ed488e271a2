"""Comparison with another revision, in a temporary git repository."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from trainyard.errors import ClusterError
from yard.preview import base
from yard.preview.base import UnknownRevision, commit_of, describe_at

ROOT = Path(__file__).parents[3]
PARTS = ("components", "cloud-init", "yard", "stacks")


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a repository with the code from this checkout, and with three workers in the stack `local`."""
    for part in PARTS:
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "local.yaml"))
    shutil.copy(ROOT / "components/catalog/machines/local.yaml", tmp_path / "components/catalog/machines/local.yaml")
    for file in (tmp_path / "stacks").glob("*"):
        file.unlink()
    stack = (ROOT / "stacks" / "Pulumi.local.yaml").read_text()
    (tmp_path / "stacks" / "Pulumi.local.yaml").write_text(stack.replace("count: 2", "count: 3"))
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "one")
    monkeypatch.setattr(base, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.engine
def test_a_revision_is_described_as_committed(repository: Path) -> None:
    (repository / "stacks" / "Pulumi.local.yaml").write_text("broken")
    described = describe_at(commit_of("HEAD"))
    plan = described["local"]["plan"]
    assert plan is not None
    assert [host["name"] for host in plan["hosts"]][-1] == "yard-gpu-2"
    assert list(described) == ["local"]
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.engine
def test_failing_code_of_a_revision_is_reported(repository: Path) -> None:
    (repository / "components" / "plan" / "plan.py").write_text("raise RuntimeError('half done')\n")
    git(repository, "commit", "--quiet", "-am", "two")
    with pytest.raises(ClusterError, match="cannot describe its stacks: RuntimeError: half done"):
        describe_at(commit_of("HEAD"))


@pytest.mark.engine
def test_old_and_incompatible_revisions_are_reported(repository: Path) -> None:
    shape = repository / "yard" / "preview" / "shape.py"
    shape.write_text(shape.read_text().replace("CONTRACT = 2", "CONTRACT = 0"))
    git(repository, "commit", "--quiet", "-am", "two")
    with pytest.raises(ClusterError, match="describes stacks with contract 0, but this revision uses 2"):
        describe_at(commit_of("HEAD"))
    git(repository, "rm", "--quiet", "-r", "yard/preview")
    git(repository, "commit", "--quiet", "-m", "three")
    with pytest.raises(ClusterError, match="is older than `yard preview`"):
        describe_at(commit_of("HEAD"))


def test_a_revision_needs_a_git_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UnknownRevision, match="not a git repository"):
        commit_of("HEAD")


@pytest.mark.parametrize("ref", ["no-such", "--help", "HEAD~99", ""])
def test_an_unknown_revision_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ref: str) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "one")
    monkeypatch.setattr(base, "ROOT", tmp_path)
    assert commit_of("HEAD") == git(tmp_path, "rev-parse", "HEAD")
    with pytest.raises(UnknownRevision, match="git cannot resolve this revision"):
        commit_of(ref)
