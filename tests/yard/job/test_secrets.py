"""Job secrets: only the job user can read their values."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from tests.yard.conftest import FakeStack, MakeProgram, job_of
from tests.yard.test_cli import yard
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster
from yard.job.launcher import LAUNCHERS, Tasks, launcher
from yard.job.placement import place
from yard.run.schedulers import Runner, Slurm
from yard.run.script import SECRETS_FILE, render_files, secrets_script
from yard.run.submit import pack

VALUE = "hf_'quoted' $HOME \"x\"\nsecond line"


def test_bash_restores_any_secret(tmp_path: Path) -> None:
    file = tmp_path / SECRETS_FILE
    file.write_text(secrets_script("job.yaml", ("HF_TOKEN",), {"HF_TOKEN": VALUE}))
    line = f'source {file}; printf %s "$HF_TOKEN"'
    assert subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout == VALUE


def test_values_are_sent_on_stdin_only(
    tmp_path: Path, stack: FakeStack, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text("name: fine\nrun: echo here\nsecrets: [HF_TOKEN, A_KEY, EMPTY]\n")
    submit = ("submit", str(tmp_path / "job.yaml"))
    ssh = program("ssh", f'cat >"{stack.root}/programs/ssh.stdin"; echo 12')
    for name, value in (("HF_TOKEN", "hf_value"), ("EMPTY", "")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("A_KEY", raising=False)
    code, out, err = yard(*submit)
    assert (code, ssh.calls) == (1, [])
    assert [name for name in ("A_KEY", "EMPTY", "HF_TOKEN") if f"{name} is not set" in err] == ["A_KEY", "EMPTY"]
    assert "hf_value" not in err
    for name in ("A_KEY", "EMPTY"):
        monkeypatch.setenv(name, "hf_value")
    for option in ((), ("--json",)):
        code, out, _ = yard(*submit, "--dry-run", *option)
        assert (code, SECRETS_FILE in out, "hf_value" in out) == (0, True, False)
    code, out, err = yard(*submit)
    assert code == 0
    assert b"export HF_TOKEN=hf_value\n" in ssh.stdin
    assert "hf_value" not in out + err + "".join(ssh.calls)


@pytest.mark.parametrize("scheduler", [Slurm(), Runner()], ids=["slurm", "none"])
def test_other_users_cannot_read_a_job_folder(scheduler: Slurm | Runner, tmp_path: Path, program: MakeProgram) -> None:
    program("sbatch", "echo 41")
    program("python3", "echo 41")
    files = {"job.sbatch": "#\n", SECRETS_FILE: "export A=b\n"}
    line = scheduler.submit_line(str(tmp_path), "hello-1", 1)
    subprocess.run(["bash", "-c", line], input=pack("hello-1", files), check=True, capture_output=True)
    assert stat.S_IMODE((tmp_path / "hello-1").stat().st_mode) == 0o700
    for name in files:
        assert stat.S_IMODE((tmp_path / "hello-1" / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("name", LAUNCHERS)
def test_each_launcher_hides_secrets_or_refuses_them(name: str, tmp_path: Path, local: Cluster) -> None:
    chosen = launcher(name)
    script = "script: train.py\nworkdir: /shared/code\n" if name == "neox" else "workload: train.py\n"
    text = f"name: fine\nlauncher: {name}\n{script}secrets: [HF_TOKEN]\n"
    if chosen.tasks is Tasks.FIRST:
        with pytest.raises(JobFileError, match="as arguments, which other users can read"):
            job_of(tmp_path, text)
        return
    loaded = job_of(tmp_path, text)
    lines = render_files(loaded, place(loaded, local))["job.sbatch"].splitlines()
    assert f'  source "$RUN_DIR/{SECRETS_FILE}"' in lines
