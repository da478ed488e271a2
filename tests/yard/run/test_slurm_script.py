"""A user's Slurm script: the submission on the head with a fake Slurm, and its log."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.yard.conftest import MakeProgram
from trainyard.errors import JobFileError, RemoteError
from trainyard.outputs import Cluster
from yard.run.queue import parse_scontrol
from yard.run.request import Request, read_request
from yard.run.schedulers import Slurm
from yard.run.submit import Prepared, pack

TEXT = "#!/bin/bash\n#SBATCH --job-name=My_Model\n#SBATCH --output=out-%j.txt\nsrun hostname\n"
FOLLOW = Path(__file__).parents[3] / "yard" / "run" / "follow.sh"
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


def submit(jobs: Path, script: Request, cluster: Cluster) -> Path:
    prepared = prepare(script, cluster)
    line = Slurm().submit_line(str(jobs), "run-1", 1, prepared.script)
    data = pack("run-1", prepared.files, prepared.tree)
    done = subprocess.run(["bash", "-c", line], input=data, capture_output=True, check=True)
    assert done.stdout == b"7\n"
    return jobs / "run-1"


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
    for name, definition, activated in (("torch", "torch", True), ("none", None, False)):
        prepared = prepare(replace(script, options={"environment": name}), local)
        assert (prepared.environment and prepared.environment.name) == definition
        files = {**prepared.files, **({"environment": "/envs/a b\n"} if activated else {})}
        line = Slurm().submit_line(str(head), f"run-{name}", 1, prepared.script)
        data = pack(f"run-{name}", files, prepared.tree)
        subprocess.run(["bash", "-c", line], input=data, capture_output=True, check=True)
        assert ((tmp_path / "seen").read_text() == "/envs/a b /envs/a b/bin\n") == activated


def test_unknown_environment_of_a_script_is_refused(script: Request, local: Cluster) -> None:
    with pytest.raises(JobFileError, match="environment"):
        prepare(replace(script, options={"environment": "troch"}), local)


def test_name_comes_from_the_script(script: Request, local: Cluster) -> None:
    assert prepare(replace(script, options={}), local).name == "my_model"


def test_log_is_found_after_slurm_has_forgotten_the_job(
    script: Request, local: Cluster, head: Path, program: MakeProgram
) -> None:
    run = submit(head, script, local)
    (run / "code" / "out-7.txt").write_text("one\ntwo\n")
    follow = ["bash", str(FOLLOW), str(head), "7", "0", "0"]
    for answer in (SCONTROL.replace("@", str(head.parent)), "exit 1"):
        program("scontrol", answer)
        done = subprocess.run(follow, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("one\ntwo\n")


def test_log_of_an_unknown_submission_comes_from_slurm(head: Path, tmp_path: Path) -> None:
    (head / "out-7.txt").write_text("plain sbatch\n")
    follow = ["bash", str(FOLLOW), str(head), "7", "0", "0"]
    done = subprocess.run(follow, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("plain sbatch\n")


def test_run_folder_of_a_script_is_the_parent() -> None:
    record = "JobId=7 JobState=RUNNING WorkDir=/shared/jobs/a-20260102-030405-ab12/code"
    assert parse_scontrol(record)[0].run_dir == "/shared/jobs/a-20260102-030405-ab12"
    assert parse_scontrol(record.replace("-ab12", ""))[0].run_dir.endswith("/code")


class Head:
    """A head whose commands run on this machine."""

    def __init__(self, cluster: Cluster, shared: Path) -> None:
        self.stack = SimpleNamespace(cluster=replace(cluster, shared_path=str(shared)))

    def run(self, command: str) -> str:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise RemoteError(done.stderr)
        return done.stdout


def test_resume_runs_the_submission_again(script: Request, local: Cluster, head: Path, tmp_path: Path) -> None:
    submit(head, script, local)
    job = parse_scontrol(f"JobId=7 JobState=FAILED WorkDir={tmp_path}")[0]
    remote: Any = Head(local, tmp_path)
    assert Slurm().resume(remote, job) == 7
    calls = (head.parent / "programs" / "sbatch.calls").read_text().splitlines()
    assert calls[:3] == calls[3:]
    assert not (tmp_path / "events").exists()


def test_resume_refuses_a_job_of_another_program(local: Cluster, head: Path, tmp_path: Path) -> None:
    job = parse_scontrol(f"JobId=9 JobState=FAILED WorkDir={tmp_path}")[0]
    remote: Any = Head(local, tmp_path)
    with pytest.raises(RemoteError, match="job 9 was not submitted with `yard submit`"):
        Slurm().resume(remote, job)
    assert not (tmp_path / "events").exists()


def test_cluster_without_slurm_refuses_the_script(script: Request, local: Cluster) -> None:
    with pytest.raises(JobFileError, match="needs Slurm, and cluster 'yard' has no scheduler"):
        prepare(script, replace(local, scheduler="none"))
