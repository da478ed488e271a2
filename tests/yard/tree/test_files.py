"""The directory that is sent with a job."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

import yard.tree.files
from trainyard.errors import JobFileError, SyncError
from yard.job.loader import load_job
from yard.run.submit import pack
from yard.tree.files import collect


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
