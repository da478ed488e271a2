"""Job submission: the tar archive, and the shell command on the head."""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.yard.conftest import MakeProgram
from yard.run.schedulers import Slurm
from yard.run.submit import pack, run_dir_name


def test_run_folder_names_sort_by_time() -> None:
    name = run_dir_name("hello", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "ab12")
    assert name == "hello-20260102-030405-ab12"


def test_tar_contains_the_files() -> None:
    with tarfile.open(fileobj=io.BytesIO(pack("run", {"b": "two\n", "a": "one\n"}))) as archive:
        assert archive.getnames() == ["run/a", "run/b"]
        member = archive.extractfile("run/b")
        assert member is not None
        assert member.read() == b"two\n"


def run(jobs_dir: Path, name: str) -> subprocess.CompletedProcess[bytes]:
    line = Slurm().submit_line(str(jobs_dir), name, 1)
    return subprocess.run(
        ["bash", "-c", line], input=pack(name, {"job.sbatch": "#\n"}), capture_output=True, check=False
    )


@pytest.mark.parametrize("answer", ["41", "41;yard"])
def test_head_unpacks_submits_and_links(answer: str, tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", f'test -f job.sbatch && echo "{answer}"')
    done = run(tmp_path, "hello-1")
    assert (done.returncode, done.stdout) == (0, b"41\n")
    assert (tmp_path / ".ids" / "41" / "job.sbatch").read_text() == "#\n"


def test_refused_job_leaves_no_folder(tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    done = run(tmp_path, "hello-1")
    assert done.returncode == 1
    assert b"invalid partition" in done.stderr
    assert not (tmp_path / "hello-1").exists()
    assert list((tmp_path / ".ids").iterdir()) == []


def test_incomplete_upload_leaves_no_folder(tmp_path: Path, program: MakeProgram) -> None:
    sbatch = program("sbatch", "echo 41")
    whole = pack("hello-1", {"job.sbatch": "#\n" * 4096})
    line = Slurm().submit_line(str(tmp_path), "hello-1", 1)
    done = subprocess.run(["bash", "-c", line], input=whole[:2048], capture_output=True, check=False)
    assert done.returncode != 0
    assert sbatch.calls == []
    assert {path.name for path in tmp_path.iterdir()} == {".ids", "programs"}


def test_run_folders_have_a_secret_random_id(tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", "echo 41")
    names = ("hello-1", "hello-2")
    for name in names:
        assert run(tmp_path, name).returncode == 0
    ids = {(tmp_path / name / "run-id").read_text() for name in names}
    assert len(ids) == 2
    assert all(re.fullmatch("[0-9a-f]{32}", value) for value in ids)
    assert (tmp_path / "hello-1").stat().st_mode & 0o777 == 0o700
