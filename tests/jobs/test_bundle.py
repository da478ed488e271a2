"""Submission: what goes over the wire, and what the far end does with it, run here in a real shell."""

from __future__ import annotations

import io
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.bundle import pack, run_dir_name
from jobs.schedulers.slurm import Slurm
from tests.jobs.conftest import MakeProgram


def test_the_folder_name_sorts_by_time() -> None:
    name = run_dir_name("hello", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "ab12")
    assert name == "hello-20260102-030405-ab12"


def test_the_tar_holds_the_files() -> None:
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
def test_the_far_end_unpacks_submits_and_links(answer: str, tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", f'test -f job.sbatch && echo "{answer}"')
    done = run(tmp_path, "hello-1")
    assert (done.returncode, done.stdout) == (0, b"41\n")
    assert (tmp_path / ".ids" / "41" / "job.sbatch").read_text() == "#\n"


def test_a_refused_job_leaves_nothing(tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", "echo 'sbatch: error: invalid partition specified: gpu' >&2; exit 1")
    done = run(tmp_path, "hello-1")
    assert done.returncode == 1
    assert b"invalid partition" in done.stderr
    assert not (tmp_path / "hello-1").exists()
    assert list((tmp_path / ".ids").iterdir()) == []
