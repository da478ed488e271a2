"""`yard data` through an ssh that runs its commands here: real bash, tar and processes, on real files."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jobs.cli import app
from jobs.data import as_job, place_for, travelling
from jobs.errors import RemoteError
from jobs.facts import Cluster
from tests.jobs.conftest import FakeStack, MakeProgram, Program

HERE = 'exec bash -c "${!#}"'
"""The body of an ssh that runs what it was told on this machine."""


def yard(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["data", *words])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def ssh(stack: FakeStack, program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return program("ssh", HERE)


def test_the_head_prepares_where_no_node_is_without_gpus(ssh: Program, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "abc"}\n')
    code, _, _ = yard("prepare", str(tmp_path / "in.jsonl"), str(tmp_path / "out"), "--processes", "1")
    assert code == 0
    assert (tmp_path / "out.bin").read_bytes() == b"a\0b\0c\0\0\1"
    assert all("yard-head" in call for call in ssh.calls)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_what_is_wrong_there_is_the_exit_code_here(ssh: Program, tmp_path: Path) -> None:
    assert yard("prepare", str(tmp_path / "absent.jsonl"), str(tmp_path / "out"))[0] == 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_every_host_verifies(ssh: Program, tmp_path: Path) -> None:
    assert yard("synth", str(tmp_path / "out"), "--tokens", "10K")[0] == 0
    code, out, _ = yard("verify", str(tmp_path / "out"), "--json")
    answer = json.loads(out)
    assert (code, answer["whole"]) == (0, True)
    assert list(answer["hosts"]) == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    assert "yard-gpu-1: 10 documents, 10000 tokens" in yard("verify", str(tmp_path / "out"), "--full")[1]


def test_a_host_that_sees_other_bytes_or_none_is_named(
    ssh: Program, program: MakeProgram, tmp_path: Path, stack: FakeStack
) -> None:
    for name, seed in (("out", "1"), ("other", "2")):
        assert yard("synth", str(tmp_path / name), "--tokens", "10K", "--seed", seed)[0] == 0
    elsewhere = 'l="${!#}" a=/out b=/NEW; [[ $* != *yard-gpu-1* ]] || l="${l//$a/$b}"; exec bash -c "$l"'
    program("ssh", elsewhere.replace("NEW", "other"))
    code, _, err = yard("verify", str(tmp_path / "out"))
    assert code == 1
    assert "they do not see the same bytes (yard-head " in err
    program("ssh", elsewhere.replace("NEW", "absent"))
    code, _, err = yard("verify", str(tmp_path / "out"))
    assert code == 1
    assert f"yard: yard-gpu-1: {tmp_path}/absent.idx cannot be read" in err


def test_nodes_without_gpus_are_chosen(local: Cluster) -> None:
    spare = replace(local.nodes[0], name="yard-cpu-0", group="cpu", gpus=0, gpu_type=None)
    mixed = replace(local, nodes=(*local.nodes, spare))
    assert (place_for(local, None), place_for(mixed, None)) == ("head", "cpu")
    assert (place_for(mixed, "gpu"), place_for(mixed, "head")) == ("gpu", "head")
    with pytest.raises(RemoteError, match="write --on head or one of gpu, cpu"):
        place_for(mixed, "tpu")


def test_the_job_is_the_same_work(tmp_path: Path) -> None:
    job = as_job(["synth", str(tmp_path / "a b"), "--tokens", "5K"], "cpu")
    for name, text in job.spec.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert job.spec.run is not None
    subprocess.run(["bash", "-c", job.spec.run], env={"RUN_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert (tmp_path / "a b.bin").stat().st_size == 10_000


def test_relative_paths_are_below_the_shared_path(stack: FakeStack, program: MakeProgram) -> None:
    # What comes is read up to the leash, as the far side does: an ssh that ended before would be a broken line.
    size = len(travelling(["synth", "/shared/data/x", "--tokens", "1"])[1])
    ssh = program("ssh", f"[[ $* == *true ]] || head -c {size} >/dev/null")
    assert yard("synth", "data/x", "--tokens", "1")[0] == 0
    assert "synth /shared/data/x " in ssh.calls[-1]


@pytest.mark.parametrize(("code", "told"), [(0, 1), (255, 255)])
def test_a_far_side_that_ends_before_it_has_all_is_no_success(
    code: int, told: int, stack: FakeStack, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    # More than a pipe holds, so that it cannot all be written before the far side ends.
    monkeypatch.setattr("jobs.data.travelling", lambda words: ("unread", bytes(1 << 20)))
    program("ssh", f"[[ $* == *true ]] || exit {code}")
    assert yard("synth", "data/x", "--tokens", "1")[0] == told


def test_nothing_stays_when_the_line_breaks(tmp_path: Path) -> None:
    line, archive = travelling(["synth", str(tmp_path / "x")])
    done = subprocess.run(
        ["bash", "-c", line],
        input=archive[:-2000],
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    assert list(tmp_path.iterdir()) == []
