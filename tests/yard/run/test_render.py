"""Rendered scripts: golden files for small recipes, shellcheck, and quoting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import CheckGolden
from tests.yard.conftest import FakeStack
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster
from yard.job.loader import WORKLOADS, LoadedJob, load_job, shipped_workloads
from yard.job.placement import place
from yard.run.script import render_files, render_script, shell_word, workload_files

LOCAL = ("allreduce", "hello", "train-tiny")
"""Recipes whose full size fits on the local stack."""


@pytest.mark.parametrize("recipe", LOCAL)
def test_small_recipes_fit_the_local_stack(recipe: str, local: Cluster, golden: CheckGolden) -> None:
    job = load_job(recipe, {}, {}, [])
    placement = place(job, local)
    assert placement.nodes == 2
    # The machines in the local stack have one CPU, so a second task would never start.
    assert placement.tasks_per_node == 1
    golden(f"jobs/local/{recipe}.sbatch", render_script(job, placement))


GOLDEN = Path(__file__).parents[2] / "golden" / "jobs"
YARD = Path(__file__).parents[3] / "yard"
SCRIPTS = sorted([*YARD.rglob("*.sh"), *GOLDEN.rglob("*.sbatch")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_shellcheck_accepts_scripts(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    shellcheck = shutil.which("shellcheck")
    assert shellcheck, "shellcheck is missing; install the development packages"
    # yard.sh uses variables that the job's script sets.
    rendered = ["--exclude=SC1091,SC2034,SC2153,SC2317,SC2329"] if script.suffix == ".sbatch" else []
    done = subprocess.run(
        [shellcheck, "--shell=bash", *rendered, str(script)], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""


@pytest.mark.parametrize(
    "text",
    ["plain", "", "two words", "it's", '"quoted"', "$RUN_DIR/x y", "a$RANK${RANK}b", "`id`;*", "back\\slash", "\n"],
)
def test_words_reach_the_workload_unchanged(text: str) -> None:
    script = f"RUN_DIR='/run dir' RANK=7; printf %s {shell_word(text)}"
    printed = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=True).stdout
    assert printed == text.replace("${RANK}", "7").replace("$RANK", "7").replace("$RUN_DIR", "/run dir")


def job_of(tmp_path: Path, text: str) -> LoadedJob:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return load_job(str(file), {}, {}, [])


def test_run_is_uploaded_as_a_file(tmp_path: Path, local: Cluster) -> None:
    job = job_of(tmp_path, "name: fine\nrun: |\n  echo one\n  echo two\n")
    files = render_files(job, place(job, local))
    assert sorted(files) == ["job.sbatch", "run.sh", "yard.sh"]
    assert files["run.sh"] == "echo one\necho two\n"


@pytest.mark.parametrize("scheduler", ["slurm", "none"])
def test_every_job_uploads_the_same_shared_code(scheduler: str, tmp_path: Path, wide: Cluster) -> None:
    texts = set()
    for lines in ("run: echo\n", "workload: train.py\nlauncher: torchrun\n", "launcher: mpirun\nrun: a\n"):
        job = job_of(tmp_path, f"name: fine\n{lines}")
        files = render_files(job, place(job, replace(wide, scheduler=scheduler)))
        texts.add(files["yard.sh"])
        script = files["job.sbatch" if scheduler == "slurm" else "job.sh"]
        assert script.endswith('source "$RUN_DIR/yard.sh"\n')
    assert len(texts) == 1


@pytest.mark.parametrize("name", shipped_workloads())
def test_workload_runs_without_the_package(name: str, tmp_path: Path) -> None:
    for file in workload_files(WORKLOADS / name):
        shutil.copy(file, tmp_path)
    environment = {"PATH": os.environ["PATH"], "PYTHONSAFEPATH": ""}
    command = [sys.executable, str(tmp_path / name), "--help"]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_workload_with_a_reserved_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "yard.sh").write_text("echo\n")
    with pytest.raises(JobFileError, match=r"yard\.sh is reserved by yard"):
        job_of(tmp_path, "name: fine\nworkload: ./yard.sh\n")


def test_partial_node_is_not_exclusive(tmp_path: Path, wide: Cluster) -> None:
    job = job_of(tmp_path, "name: fine\nrun: echo\ngpus_per_node: 2\nmemory_per_node: 64G\ntime: 2d\n")
    script = render_script(job, place(job, wide))
    assert "--exclusive" not in script
    assert "#SBATCH --mem=64G\n" in script
    assert "#SBATCH --time=2-00:00:00\n" in script
    assert "readonly gpus_per_node=2 tasks_per_node=2\n" in script


@pytest.mark.parametrize(
    ("lines", "path"), [("nodes: 3", "nodes"), ("gpus_per_node: 4", "gpus_per_node"), ("group: cpu", "group")]
)
def test_too_large_job_is_refused(lines: str, path: str, tmp_path: Path, local: Cluster) -> None:
    job = job_of(tmp_path, f"name: fine\nrun: echo\n{lines}\n")
    with pytest.raises(JobFileError) as caught:
        place(job, local)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_task_uses_its_rank_and_log(stack: FakeStack, local: Cluster, tmp_path: Path) -> None:
    job = job_of(tmp_path, "name: fine\nrun: echo $RANK of $WORLD_SIZE at $NODE_RANK\n")
    files = render_files(job, place(job, local))
    fabric = tmp_path / "fabric.env"
    fabric.write_text("GLOO_SOCKET_IFNAME=eth7\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("/etc/trainyard/fabric.env", str(fabric)))
    for rank in (0, 1):
        slurm = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank)}
        given = {"RUN_DIR": str(tmp_path), "NODE_IPS": "10.0.0.1,10.0.0.2", "WORLD_SIZE": "2", "JOB_NAME": "fine"}
        printed = subprocess.run(
            ["bash", str(tmp_path / "job.sbatch"), "task"],
            env={"PATH": "/usr/bin:/bin", **given, **slurm},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        words = f"{rank} of 2 at {rank}\n"
        assert (printed, (tmp_path / "rank-1.log").exists()) == ((words, False) if rank == 0 else ("", True))
    assert (tmp_path / "rank-1.log").read_text() == "1 of 2 at 1\n"


def test_run_ignores_the_bash_startup_file(tmp_path: Path, local: Cluster) -> None:
    """bash reads ~/.bashrc if sshd started it, and Debian's ~/.bashrc fails with `set -u`."""
    job = job_of(tmp_path, "name: quiet\nnodes: 1\nrun: echo work\n")
    files = render_files(job, place(job, local))
    line = next(line for line in files["job.sbatch"].splitlines() if "run.sh" in line)
    (tmp_path / "run.sh").write_text(files["run.sh"])
    (tmp_path / ".bashrc").write_text("echo start-up file\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RUN_DIR": str(tmp_path), "SSH_CLIENT": "10.0.0.1 1 22"}
    done = subprocess.run(["bash", "--norc", "-c", line], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("work\n", "")
