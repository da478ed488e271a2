"""`yard data` with a fake ssh that runs commands locally."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.yard.conftest import FakeStack, MakeProgram, Program
from yard.cli import app
from yard.contract.outputs import Cluster
from yard.data.command import as_job, remote_command, target_for
from yard.errors import RemoteError

pytestmark = pytest.mark.engine

HERE = 'exec bash -c "${!#}"'
"""Body of a fake `ssh` that runs the given command locally."""


def yard(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["data", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def ssh(stack: FakeStack, program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return program("ssh", HERE)


def test_the_head_is_used_if_all_nodes_have_gpus(ssh: Program, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "abc"}\n')
    code, _, _ = yard("prepare", str(tmp_path / "in.jsonl"), str(tmp_path / "out"), "--processes", "1")
    assert code == 0
    assert (tmp_path / "out.bin").read_bytes() == b"a\0b\0c\0\0\1"
    assert all("yard-head" in call for call in ssh.calls)
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_remote_failure_is_the_exit_code(ssh: Program, tmp_path: Path) -> None:
    assert yard("prepare", str(tmp_path / "absent.jsonl"), str(tmp_path / "out"))[0] == 1
    assert list((tmp_path / "tmp").iterdir()) == []


def test_every_host_verifies_the_dataset(ssh: Program, tmp_path: Path) -> None:
    assert yard("synth", str(tmp_path / "out"), "--tokens", "10K")[0] == 0
    code, out, _ = yard("verify", str(tmp_path / "out"), "--json")
    answer = json.loads(out)
    assert (code, answer["whole"]) == (0, True)
    assert list(answer["hosts"]) == ["yard-head", "yard-gpu-0", "yard-gpu-1"]
    assert "yard-gpu-1: 10 documents, 10000 tokens" in yard("verify", str(tmp_path / "out"), "--full")[1]


def test_hosts_with_other_or_missing_bytes_are_reported(
    ssh: Program, program: MakeProgram, tmp_path: Path, stack: FakeStack
) -> None:
    for name, seed in (("out", "1"), ("other", "2")):
        assert yard("synth", str(tmp_path / name), "--tokens", "10K", "--seed", seed)[0] == 0
    elsewhere = 'l="${!#}" a=/out b=/NEW; [[ $* != *yard-gpu-1* ]] || l="${l//$a/$b}"; exec bash -c "$l"'
    program("ssh", elsewhere.replace("NEW", "other"))
    code, _, err = yard("verify", str(tmp_path / "out"))
    assert code == 1
    assert "the hosts read different bytes (yard-head " in err
    program("ssh", elsewhere.replace("NEW", "absent"))
    code, _, err = yard("verify", str(tmp_path / "out"))
    assert code == 1
    assert f"yard: yard-gpu-1: {tmp_path}/absent.idx cannot be read" in err


def test_a_group_without_gpus_is_preferred(local: Cluster) -> None:
    spare = replace(local.nodes[0], name="yard-cpu-0", group="cpu", gpus=0, gpu_type=None)
    mixed = replace(local, nodes=(*local.nodes, spare))
    assert (target_for(local, None), target_for(mixed, None)) == ("head", "cpu")
    assert (target_for(mixed, "gpu"), target_for(mixed, "head")) == ("gpu", "head")
    with pytest.raises(RemoteError, match="use --on with head or one of gpu, cpu"):
        target_for(mixed, "tpu")


def test_the_job_runs_the_package(tmp_path: Path) -> None:
    job = as_job(["synth", str(tmp_path / "a b"), "--tokens", "5K"], "cpu")
    for name, text in job.spec.files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert job.spec.run is not None
    subprocess.run(["bash", "-c", job.spec.run], env={"RUN_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}, check=True)
    assert (tmp_path / "a b.bin").stat().st_size == 10_000


def test_relative_paths_are_below_the_shared_path(stack: FakeStack, program: MakeProgram) -> None:
    # The fake ssh reads the whole archive, as the remote command does, to avoid a broken pipe.
    size = len(remote_command(["synth", "/shared/data/x", "--tokens", "1"])[1])
    ssh = program("ssh", f"[[ $* == *true ]] || head -c {size} >/dev/null")
    assert yard("synth", "data/x", "--tokens", "1")[0] == 0
    assert "synth /shared/data/x " in ssh.calls[-1]


@pytest.mark.parametrize(("code", "reported"), [(0, 1), (255, 255)])
def test_an_early_end_of_the_remote_command_is_a_failure(
    code: int, reported: int, stack: FakeStack, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The data is larger than a pipe buffer, so the write is incomplete when the remote command ends.
    monkeypatch.setattr("yard.data.command.remote_command", lambda arguments: ("unread", bytes(1 << 20)))
    program("ssh", f"[[ $* == *true ]] || exit {code}")
    assert yard("synth", "data/x", "--tokens", "1")[0] == reported


def test_a_truncated_archive_leaves_no_files(tmp_path: Path) -> None:
    line, archive = remote_command(["--leash", "synth", str(tmp_path / "x")])
    done = subprocess.run(
        ["bash", "-c", line],
        input=archive[:-2000],
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=False,
    )
    assert done.returncode != 0
    assert list(tmp_path.iterdir()) == []
