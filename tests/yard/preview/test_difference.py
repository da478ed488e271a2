"""Snapshots of another revision in a temporary git repository, and the differences between two snapshots."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.yard.preview.conftest import DescribeEdited
from trainyard.errors import ClusterError
from yard.preview import difference
from yard.preview.describe import Description, describe
from yard.preview.difference import Difference, UnknownRevision, commit_of, compare, snapshots_at

ROOT = Path(__file__).parents[3]
PARTS = ("trainyard", "components", "cloud-init", "yard", "stacks")


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
    monkeypatch.setattr(difference, "ROOT", tmp_path)
    return tmp_path


@pytest.mark.engine
def test_a_revision_is_described_as_committed(repository: Path) -> None:
    (repository / "stacks" / "Pulumi.local.yaml").write_text("broken")
    described = snapshots_at(commit_of("HEAD"))
    assert described["local"].hosts[-1] == "yard-gpu-2"
    assert list(described) == ["local"]
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.engine
def test_failing_code_of_a_revision_is_reported(repository: Path) -> None:
    (repository / "components" / "plan" / "plan.py").write_text("raise RuntimeError('half done')\n")
    git(repository, "commit", "--quiet", "-am", "two")
    with pytest.raises(ClusterError, match="cannot describe its stacks: RuntimeError: half done"):
        snapshots_at(commit_of("HEAD"))


@pytest.mark.engine
def test_old_and_incompatible_revisions_are_reported(repository: Path) -> None:
    shape = repository / "yard" / "preview" / "describe.py"
    shape.write_text(shape.read_text().replace("CONTRACT = 3", "CONTRACT = 0"))
    git(repository, "commit", "--quiet", "-am", "two")
    with pytest.raises(ClusterError, match="describes stacks with contract 0, but this revision uses 3"):
        snapshots_at(commit_of("HEAD"))
    git(repository, "rm", "--quiet", "-r", "yard/preview")
    git(repository, "commit", "--quiet", "-m", "three")
    with pytest.raises(ClusterError, match="is older than `yard preview`"):
        snapshots_at(commit_of("HEAD"))


def test_a_revision_needs_a_git_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difference, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UnknownRevision, match="not a git repository"):
        commit_of("HEAD")


@pytest.mark.parametrize("ref", ["no-such", "--help", "HEAD~99", ""])
def test_an_unknown_revision_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ref: str) -> None:
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "-m", "one")
    monkeypatch.setattr(difference, "ROOT", tmp_path)
    assert commit_of("HEAD") == git(tmp_path, "rev-parse", "HEAD")
    with pytest.raises(UnknownRevision, match="git cannot resolve this revision"):
        commit_of(ref)


def between(before: Description | None, after: Description) -> Difference:
    return compare(before.snapshot if before else None, after.snapshot)


def test_a_stack_does_not_differ_from_itself() -> None:
    found = between(describe("azure-a100"), describe("azure-a100"))
    assert found.usd_per_hour == 0
    assert not any([found.new, found.hosts_added, found.hosts_removed, found.quota, found.files])


def test_more_nodes_change_price_hosts_quota_and_files(edited: DescribeEdited) -> None:
    found = between(edited("azure-a100"), edited("azure-a100", nodes__gpu__count=4, limits={}))
    assert found.usd_per_hour == 65.54
    assert found.hosts_added == ["opt-gpu-2", "opt-gpu-3"]
    assert {need.quota: need.amount for need in found.quota} == {
        "cores": 192,
        "standard NDAMSv4_A100Family": 192,
    }
    [slurm] = [file for file in found.files if file.file == "slurm.conf"]
    assert "\n-NodeName=opt-gpu-[0-1] " in slurm.diff
    assert "\n+NodeName=opt-gpu-[0-3] " in slurm.diff


def test_a_larger_disk_costs_more(edited: DescribeEdited) -> None:
    small = edited("azure-a100", storage__shared={"kind": "head_nfs", "size_gib": 256})
    found = between(small, edited("azure-a100"))
    # The change from P15 to P30 costs 97.16 dollars a month.
    assert found.usd_per_hour == 0.133


def test_an_unknown_price_makes_the_difference_unknown(edited: DescribeEdited) -> None:
    # No dated source contains the price of Azure Bastion.
    found = between(edited("azure-h100"), edited("azure-h100", nodes__gpu__count=1))
    assert (found.usd_per_hour, found.known_usd_per_hour) == (None, -98.32)
    assert found.hosts_removed == ["hopper-gpu-1"]


def test_a_new_stack_has_no_file_differences(edited: DescribeEdited) -> None:
    found = between(None, edited("local"))
    assert found.new
    assert found.files == []
    assert found.hosts_added == ["yard-head", "yard-gpu-0", "yard-gpu-1"]


def test_the_same_change_of_two_roles_is_shown_once() -> None:
    before, after = describe("local"), describe("local")
    for role in ("head", "gpu"):
        after.snapshot.files[f"user-data of {role}"] += "echo more\n"
    [file] = between(before, after).files
    assert (file.file, file.same_in) == ("user-data of head", ["user-data of gpu"])
    assert file.diff.endswith("+echo more\n")


def test_refused_stacks_can_be_compared(edited: DescribeEdited) -> None:
    refused = edited("local", nodes__gpu__count=0)
    assert between(refused, edited("local")).hosts_added == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    assert between(edited("local"), refused).hosts_removed == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
