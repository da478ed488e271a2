"""Every combination of launcher, container runtime and scheduler is either rendered or rejected."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import CheckGolden
from tests.yard.conftest import job_of
from trainyard.errors import JobFileError
from trainyard.outputs import Cluster
from yard.job.launcher import LAUNCHERS, Source, launcher
from yard.job.spec import RUNTIMES
from yard.run.script import shared_script
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


@pytest.mark.engine
@pytest.mark.parametrize("name", LAUNCHERS)
def test_shellcheck_accepts_whole_scripts(name: str, tmp_path: Path, wide: Cluster) -> None:
    shellcheck = shutil.which("shellcheck")
    assert shellcheck, "shellcheck is missing; install the development packages"
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
    done = subprocess.run(
        [shellcheck, "--shell=bash", UNREACHABLE, *files], capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
