"""The launch matrix: every launcher in every container under either scheduler is a golden, or refused in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.container import RUNTIMES
from jobs.errors import JobFileError
from jobs.facts import Cluster
from jobs.launcher import LAUNCHERS, Source, Tasks, launcher
from jobs.loader import load_job
from jobs.placement import place
from jobs.render import render_script
from tests.conftest import GOLDEN, CheckGolden

SCHEDULERS = ("slurm", "none")
IMAGE = "nvcr.io/nvidia/pytorch:26.01-py3"
FOLDER = GOLDEN / "jobs" / "matrix"
JOBS = Path(__file__).parents[2] / "jobs"


def row(name: str, runtime: str) -> str:
    """A job file for a launcher; `runtime` '' is without a container."""
    lines = [f"name: {name}", "nodes: 4", f"launcher: {name}", "env: {OMP_NUM_THREADS: 6}", "args: [--x y]"]
    lines.append("script: train.py" if Source.WORKLOAD not in launcher(name).starts else "workload: train.py")
    lines.append("workdir: /shared/code")
    if runtime:
        lines.append(f"container: {{image: '{IMAGE}', runtime: {runtime}, mounts: ['/data:/data:ro']}}")
    return "\n".join(lines) + "\n"


def script(tmp_path: Path, cluster: Cluster, name: str, runtime: str, scheduler: str) -> str:
    file = tmp_path / "job.yaml"
    file.write_text(row(name, runtime))
    job = load_job(str(file), {}, {}, [])
    return render_script(job, place(job, replace(cluster, scheduler=scheduler)))


def fits(name: str, runtime: str, scheduler: str) -> bool:
    """The matrix in one expression: docker is for hosts without Slurm, pyxis is Slurm's."""
    homes = {"": SCHEDULERS, "pyxis": ("slurm",), "enroot": SCHEDULERS, "docker": ("none",)}
    chosen = launcher(name)
    return scheduler in homes[runtime] and scheduler in chosen.schedulers and runtime in {"", *chosen.runtimes}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("runtime", ["", *RUNTIMES])
@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_row_is_a_golden_or_one_clear_problem(  # noqa: PLR0913, PLR0917  (three axes and three fixtures)
    name: str, runtime: str, scheduler: str, tmp_path: Path, wide: Cluster, golden: CheckGolden
) -> None:
    path = f"jobs/matrix/{scheduler}/{name}{'-' if runtime else ''}{runtime}.sh"
    if not fits(name, runtime, scheduler):
        with pytest.raises(JobFileError) as caught:
            script(tmp_path, wide, name, runtime, scheduler)
        assert [problem.path for problem in caught.value.problems] in (["launcher"], ["container.runtime"])
        return
    own, marker, _ = script(tmp_path, wide, name, runtime, scheduler).partition("\n# --- ")
    assert marker
    golden(path, own + "\n")


def test_every_row_is_rendered_somewhere() -> None:
    """A rule that refused too much would make the goldens of a launcher vanish."""
    rendered = {path.stem for path in FOLDER.rglob("*.sh")}
    expected = {
        f"{name}{'-' if runtime else ''}{runtime}"
        for name in LAUNCHERS
        for runtime in ("", *RUNTIMES)
        for scheduler in SCHEDULERS
        if fits(name, runtime, scheduler)
    }
    assert rendered == expected
    assert set(LAUNCHERS) <= rendered
    containers = {"torchrun-pyxis", "torchrun-enroot", "torchrun-docker", "srun-pyxis", "deepspeed-pdsh-docker"}
    assert containers <= rendered


def test_whole_scripts_are_clean_bash(tmp_path: Path, wide: Cluster) -> None:
    """One shellcheck for a script of each kind: what differs between rows is all in the goldens."""
    shellcheck = shutil.which("shellcheck")
    assert shellcheck, "shellcheck comes with the development packages"
    kinds = [
        ("mpirun", "", "slurm"),
        ("neox", "docker", "none"),
        ("torchrun-elastic", "enroot", "none"),
        ("deepspeed-openmpi", "", "slurm"),
    ]
    files = []
    for name, runtime, scheduler in kinds:
        file = tmp_path / f"{name}.sh"
        file.write_text(script(tmp_path, wide, name, runtime, scheduler))
        files.append(str(file))
    done = subprocess.run([shellcheck, "--shell=bash", *files], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize("name", LAUNCHERS)
def test_tasks_of_slurm_are_the_launchers(name: str, tmp_path: Path, wide: Cluster) -> None:
    text = script(tmp_path, wide, name, "", "slurm")
    per_node = 1 if launcher(name).tasks is Tasks.NODE else 8
    assert f"#SBATCH --ntasks-per-node={per_node}\n" in text
    assert f"leads={int(launcher(name).tasks is Tasks.FIRST)} " in text


@pytest.mark.parametrize(("built", "said"), [(True, "here True\n"), (False, "refused True\nhere False\n")])
def test_torchrun_starts_with_a_torch_that_was_built_without_libuv(tmp_path: Path, built: bool, said: str) -> None:
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    # As torch has it: by default with libuv, which a build may lack.
    (package / "__init__.py").write_text(
        "class TCPStore:\n"
        "    def __init__(self, host, use_libuv=True):\n"
        f"        if use_libuv and not {built}:\n"
        "            print('refused', use_libuv)\n"
        "            raise RuntimeError('use_libuv was requested but PyTorch was build without libuv support')\n"
        "        print(host, use_libuv)\n"
    )
    (package / "run.py").write_text(
        "import sys\nfrom torch.distributed import TCPStore\n"
        "def main():\n    print(sys.argv[1:])\n    TCPStore('here')\n"
    )
    line = f"source {JOBS / 'torchrun.sh'}; start_torchrun --nnodes=2 'a b'"
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"['--nnodes=2', 'a b']\n{said}"
