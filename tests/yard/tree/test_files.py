"""The directory that is sent with a job, and the recorded state of the working tree."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

import yard.tree.files
import yard.tree.snapshot
from tests.yard.conftest import FakeStack, MakeProgram
from tests.yard.test_cli import yard as run_yard
from trainyard.errors import JobFileError, SyncError
from yard.job.loader import load_job
from yard.run.submit import pack
from yard.tree.files import collect
from yard.tree.snapshot import take_snapshot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with an ignored file, a secret, a program, a link and a large file."""
    folder = tmp_path / "project"
    (folder / "deep").mkdir(parents=True)
    for name, text in ((".gitignore", "*.log\n"), ("train.py", "1\n"), ("x.log", "\n"), (".env", "T=1\n")):
        (folder / name).write_text(text)
    (folder / "deep" / "go.sh").write_text("#!/bin/sh\n")
    (folder / "deep" / "go.sh").chmod(0o775)
    (folder / "link").symlink_to("train.py")
    os.link(folder / "train.py", folder / "same.py")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def test_ignored_files_and_secrets_stay_here(project: Path) -> None:
    tree = collect("train.py", project)
    assert tree.names == (".gitignore", "deep/go.sh", "link", "same.py", "train.py")
    assert tree.left_out == (".env",)
    assert collect("x.log", project, ["x.log"]).names[-1] == "x.log"


def test_archive_keeps_links_and_programs_private(project: Path) -> None:
    data = pack("run", {"job.sh": "\n"}, collect("train.py", project))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        modes = {entry.name: (entry.mode, entry.issym(), entry.uid, entry.uname) for entry in archive}
        same = archive.extractfile("run/code/same.py")
        assert same is not None
        assert same.read() == b"1\n"
    assert modes["run/code/deep/go.sh"] == (0o700, False, 0, "")
    assert modes["run/code/train.py"] == (0o600, False, 0, "")
    assert modes["run/code/link"][1]


def test_archive_of_an_empty_directory_contains_the_directory(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(pack("run", {}, collect("job", tmp_path)))) as archive:
        assert archive.getnames() == ["run/code"]
        assert archive.getmember("run/code").isdir()


@pytest.mark.parametrize(("limit", "words"), [("MOST_FILES", "has 5 files"), ("MOST_MIB", "its largest files: ")])
def test_large_directory_is_refused(limit: str, words: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yard.tree.files, limit, 0)
    with pytest.raises(JobFileError, match=words) as caught:
        collect("train.py", project)
    assert ".gitignore" in str(caught.value)


def test_file_that_disappears_stops_the_submission(project: Path) -> None:
    tree = collect("train.py", project)
    (project / "train.py").unlink()
    with pytest.raises(SyncError, match="nothing was submitted"):
        pack("run", {}, tree)


@pytest.mark.parametrize(
    ("lines", "path"),
    [
        ("code: nowhere\nscript: train.py\n", "code"),
        ("code: ..\nrun: ls\n", "code"),
        ("code: .\nscript: nowhere.py\n", "script"),
        ("code: [a]\nrun: ls\n", "code"),
    ],
)
def test_wrong_directory_of_a_job_file_is_refused(
    lines: str, path: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / "job.yaml").write_text(f"name: fine\n{lines}")
    with pytest.raises(JobFileError) as caught:
        load_job("job.yaml", {}, {}, [])
    assert [problem.path for problem in caught.value.problems] == [path]


def test_job_file_can_name_a_directory(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "job.yaml").write_text("name: fine\ncode: .\nscript: train.py\nlauncher: torchrun\n")
    job = load_job(str(project / "job.yaml"), {}, {}, [])
    assert (job.code, job.spec.script) == (project, "train.py")


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
