"""Every combination of launcher, container runtime and scheduler is rendered or rejected; shellcheck and quoting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import CheckGolden
from tests.yard.conftest import job_of
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster
from yard.job.launcher import LAUNCHERS, Source, launcher
from yard.job.loader import WORKLOADS, shipped_workloads
from yard.job.placement import place
from yard.job.spec import RUNTIMES
from yard.run.script import render_files, render_script, shared_script, shell_word, workload_files
from yard.run.submit import prepare

SCHEDULERS = ("slurm", "none")
IMAGE = "nvcr.io/nvidia/pytorch:26.01-py3"
UNREACHABLE = "--exclude=SC2054,SC2153,SC2154,SC2317,SC2329"
"""Excludes warnings about functions selected by arguments, variables set only in containers, and commas in mounts."""


def row(name: str, runtime: str) -> str:
    """Return a job file for a launcher. `runtime` is '' for a job without a container."""
    lines = [f"name: {name}", "nodes: 4", f"launcher: {name}", "env: {OMP_NUM_THREADS: 6}", "args: [--x y]"]
    lines.append("script: train.py" if Source.WORKLOAD not in launcher(name).starts else "workload: train.py")
    lines.append("workdir: /shared/code")
    if runtime:
        lines.append(f"container: {{image: '{IMAGE}', runtime: {runtime}, mounts: ['/data:/data:ro']}}")
    return "\n".join(lines) + "\n"


def script(tmp_path: Path, cluster: Cluster, name: str, runtime: str, scheduler: str) -> str:
    prepared = prepare(job_of(tmp_path, row(name, runtime)), replace(cluster, scheduler=scheduler))
    return prepared.files[prepared.script]


def fits(name: str, runtime: str, scheduler: str) -> bool:
    """Return whether a combination is supported. docker needs `scheduler: none`, and pyxis needs Slurm."""
    schedulers = {"": SCHEDULERS, "pyxis": ("slurm",), "enroot": SCHEDULERS, "docker": ("none",)}
    chosen = launcher(name)
    return (
        scheduler in schedulers[runtime]
        and not (chosen.needs_slurm and scheduler == "none")
        and runtime in {"", *chosen.runtimes}
    )


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("runtime", ["", *RUNTIMES])
@pytest.mark.parametrize("name", LAUNCHERS)
def test_combination_is_rendered_or_refused(  # noqa: PLR0913, PLR0917  (three axes and three fixtures)
    name: str, runtime: str, scheduler: str, tmp_path: Path, wide: Cluster, golden: CheckGolden
) -> None:
    if not fits(name, runtime, scheduler):
        with pytest.raises(JobFileError) as caught:
            script(tmp_path, wide, name, runtime, scheduler)
        assert [problem.path for problem in caught.value.problems] in (["launcher"], ["container.runtime"])
        return
    text = script(tmp_path, wide, name, runtime, scheduler)
    golden(f"jobs/matrix/{scheduler}/{name}{'-' if runtime else ''}{runtime}.sh", text)


def shellcheck(*words: str | Path) -> str:
    program = shutil.which("shellcheck")
    assert program, "shellcheck is missing; install the development packages"
    return subprocess.run([program, "--shell=bash", *words], capture_output=True, text=True, check=False).stdout


@pytest.mark.engine
@pytest.mark.parametrize("name", LAUNCHERS)
def test_shellcheck_accepts_whole_scripts(name: str, tmp_path: Path, wide: Cluster) -> None:
    # Without Slurm, docker is the only supported container runtime.
    kinds = {"": "slurm", "pyxis": "slurm", "enroot": "slurm", "docker": "none"}
    files = []
    for runtime, scheduler in kinds.items():
        if not fits(name, runtime, scheduler):
            continue
        # shellcheck checks both scripts as one file, because the job's script and yard.sh use each other's variables.
        shared = shared_script("slurm.sh" if scheduler == "slurm" else "direct.sh")
        files.append(tmp_path / f"{runtime or scheduler}.sh")
        text = script(tmp_path, wide, name, runtime, scheduler)
        files[-1].write_text(text.replace('source "$RUN_DIR/yard.sh"\n', shared))
    assert shellcheck(UNREACHABLE, *files) == ""


@pytest.mark.parametrize(
    "text",
    ["plain", "", "two words", "it's", '"quoted"', "$RUN_DIR/x y", "a$RANK${RANK}b", "`id`;*", "back\\slash", "\n"],
)
def test_words_reach_the_workload_unchanged(text: str) -> None:
    script = f"RUN_DIR='/run dir' RANK=7; printf %s {shell_word(text)}"
    printed = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=True).stdout
    assert printed == text.replace("${RANK}", "7").replace("$RANK", "7").replace("$RUN_DIR", "/run dir")


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
