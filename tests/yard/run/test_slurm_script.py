"""A user's Slurm script: the submission on the head with a fake Slurm, and its log."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.yard.conftest import LocalHead, MakeProgram
from trainyard.errors import JobFileError, RemoteError
from trainyard.outputs import Cluster
from yard.run.queue import parse_scontrol
from yard.run.request import Request, read_request
from yard.run.schedulers import Slurm
from yard.run.submit import Prepared, pack

TEXT = "#!/bin/bash\n#SBATCH --job-name=My_Model\n#SBATCH --output=out-%j.txt\nsrun hostname\n"

SBATCH = 'pwd >>"@/sbatch.calls"; echo "A=$A" >>"@/sbatch.calls"; touch out-7.txt; echo 7'
SCONTROL = 'echo "JobId=7 JobName=a JobState=COMPLETED ExitCode=0:0 StdOut=$(find @/jobs -name out-7.txt)"'


@pytest.fixture
def script(tmp_path: Path) -> Request:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "job.sbatch").write_text(TEXT)
    (folder / "model.py").write_text("")
    options = {"nodes": 2, "time": "2d", "group": "gpu", "name": "other", "gpus_per_node": 1}
    path = str(folder / "job.sbatch")
    return Request(job=path, words=["x y"], options=options, settings=["A=b c"], smoke=False, code=True)


@pytest.fixture
def head(tmp_path: Path, program: MakeProgram) -> Path:
    """The folder `jobs` on a fake head."""
    program("sbatch", SBATCH.replace("@", f"{tmp_path}/programs"))
    program("scontrol", SCONTROL.replace("@", str(tmp_path)))
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    return jobs


def prepare(request: Request, cluster: Cluster) -> Prepared:
    return read_request(request)(cluster)[0]


def submit(jobs: Path, script: Request, cluster: Cluster, name: str = "run-1", **more: str) -> Path:
    prepared = prepare(script, cluster)
    line = Slurm().submit_line(str(jobs), name, 1, prepared.script)
    data = pack(name, {**prepared.files, **more}, prepared.tree)
    done = subprocess.run(["bash", "-c", line], input=data, capture_output=True, check=True)
    assert done.stdout == b"7\n"
    return jobs / name


def log_of_job_7(head: Path) -> str:
    follow = ["bash", str(ROOT / "yard" / "run" / "follow.sh"), str(head), "7", "0", "0"]
    return subprocess.run(follow, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False).stdout


def test_script_is_sent_unchanged(script: Request, local: Cluster, head: Path) -> None:
    run = submit(head, script, local)
    assert (run / "code" / "job.sbatch").read_text() == TEXT
    assert sorted(path.name for path in (run / "code").iterdir()) == ["job.sbatch", "model.py", "out-7.txt"]
    arguments, folder, env = (head.parent / "programs" / "sbatch.calls").read_text().splitlines()
    options = "--nodes=2 --time=2-00:00:00 --partition=gpu --job-name=other --gpus-per-node=1"
    assert arguments == f"--parsable {options} ./job.sbatch x y"
    assert (folder, env) == (f"{run}/code", "A=b c")


def test_script_runs_in_an_environment(
    script: Request, local: Cluster, head: Path, tmp_path: Path, program: MakeProgram
) -> None:
    program("sbatch", f'echo "$VIRTUAL_ENV ${{PATH%%:*}}" >"{tmp_path}/seen"; echo 7')
    for name, more in (("torch", {"environment": "/envs/a b\n"}), ("none", {})):
        chosen = replace(script, options={"environment": name})
        environment = prepare(chosen, local).environment
        assert (environment.name if environment else "none") == name
        submit(head, chosen, local, f"run-{name}", **more)
        assert ((tmp_path / "seen").read_text() == "/envs/a b /envs/a b/bin\n") is bool(more)


def test_log_is_found_after_slurm_has_forgotten_the_job(
    script: Request, local: Cluster, head: Path, program: MakeProgram
) -> None:
    run = submit(head, script, local)
    (run / "code" / "out-7.txt").write_text("one\ntwo\n")
    program("scontrol", "exit 1")
    assert log_of_job_7(head).startswith("one\ntwo\n")


def test_log_of_an_unknown_submission_comes_from_slurm(head: Path) -> None:
    (head / "out-7.txt").write_text("plain sbatch\n")
    assert log_of_job_7(head).startswith("plain sbatch\n")


@pytest.mark.parametrize(
    ("scheduler", "options", "rule"),
    [
        ("slurm", {"environment": "troch"}, "environment"),
        ("none", {}, "needs Slurm, and cluster 'yard' has no scheduler"),
    ],
)
def test_unsuitable_script_is_refused(
    scheduler: str, options: dict[str, Any], rule: str, script: Request, local: Cluster
) -> None:
    with pytest.raises(JobFileError, match=rule):
        prepare(replace(script, options=options), replace(local, scheduler=scheduler))


def test_name_comes_from_the_script(script: Request, local: Cluster) -> None:
    assert prepare(replace(script, options={}), local).name == "my_model"


def test_run_folder_of_a_script_is_the_parent() -> None:
    record = "JobId=7 JobState=RUNNING WorkDir=/shared/jobs/a-20260102-030405-ab12/code"
    assert parse_scontrol(record)[0].run_dir == "/shared/jobs/a-20260102-030405-ab12"
    assert parse_scontrol(record.replace("-ab12", ""))[0].run_dir.endswith("/code")


def test_resume_runs_the_submission_again(script: Request, local: Cluster, head: Path, tmp_path: Path) -> None:
    submit(head, script, local)
    remote: Any = LocalHead(replace(local, shared_path=str(tmp_path)))
    job = parse_scontrol(f"JobId=7 JobState=FAILED WorkDir={tmp_path}")[0]
    assert Slurm().resume(remote, job) == 7
    calls = (head.parent / "programs" / "sbatch.calls").read_text().splitlines()
    assert calls[:3] == calls[3:]
    other = parse_scontrol(f"JobId=9 JobState=FAILED WorkDir={tmp_path}")[0]
    with pytest.raises(RemoteError, match="job 9 was not submitted with `yard submit`"):
        Slurm().resume(remote, other)
    assert not (tmp_path / "events").exists()
