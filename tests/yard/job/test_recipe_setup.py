"""The `setup` commands in recipes, executed on recorded content of upstream repositories."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.yard.job.test_upstream import file_of
from yard.job.loader import load_job

CONFIG_20B: dict[str, str | int] = file_of("gpt-neox:configs/20B.yml")["keys"]


def run_setup(recipe: str, checkout: Path, run_dir: Path) -> subprocess.CompletedProcess[str]:
    """Run a recipe's `setup` in `checkout`. The folder above `checkout` replaces /shared/data."""
    lines = load_job(recipe, {}, {}, []).spec.setup or ""
    lines = lines.replace("/shared/data/", f"{checkout.parent}/")
    (checkout / "configs").mkdir(parents=True, exist_ok=True)
    text = "".join(f"  {key_line(key, value)}\n" for key, value in CONFIG_20B.items())
    (checkout / "configs" / "20B.yml").write_text("{\n" + text + "}\n")
    run_dir.mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "RUN_DIR": str(run_dir), "CHECKPOINT_DIR": "/shared/checkpoints"}
    command = ["bash", "-euo", "pipefail", "-c", lines]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def key_line(key: str, value: str | int) -> str:
    return f'"{key}": "{value}",' if isinstance(value, str) else f'"{key}": {value},'


def test_setup_edits_the_20b_configuration(tmp_path: Path) -> None:
    done = run_setup("neox-20b", tmp_path / "neox", tmp_path / "run")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = yaml.safe_load((tmp_path / "run" / "20B.yml").read_text())
    changed = {"pipe_parallel_size": 6, "model_parallel_size": 4, "save": "/shared/checkpoints"}
    assert made == CONFIG_20B | changed | {"load": "/shared/checkpoints"}


@pytest.mark.parametrize("data", ["synthetic", "enwik8"])
def test_setup_writes_the_2_7b_configuration(data: str, tmp_path: Path) -> None:
    run_dir, checkout = tmp_path / "run", tmp_path / "neox"
    run_dir.mkdir()
    for name, text in load_job("neox-2.7b", {}, {}, []).spec.files.items():
        (run_dir / name).write_text(text)
    index = checkout / "data" / "enwik8" / "enwik8_text_document.idx" if data == "enwik8" else tmp_path / "neox.idx"
    index.parent.mkdir(parents=True, exist_ok=True)
    index.touch()
    done = run_setup("neox-2.7b", checkout, run_dir)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = yaml.safe_load((run_dir / "local.yml").read_text())
    places = {"save": "/shared/checkpoints", "load": "/shared/checkpoints", "log-dir": "/shared/checkpoints/logs"}
    assert made == yaml.safe_load((run_dir / f"{data}.yml.in").read_text()) | places


def test_setup_names_the_command_for_missing_data(tmp_path: Path) -> None:
    done = run_setup("neox-2.7b", tmp_path / "neox", tmp_path / "run")
    assert done.returncode == 2
    assert "run `yard data synth data/neox --tokens 50M --vocab 512`" in done.stdout


def test_container_benchmark_uses_the_mpi_build() -> None:
    """NGC's all_reduce_perf is built without MPI, so each of the 16 tasks would measure one GPU and succeed."""
    job = load_job("nccl-allreduce-container", {}, {}, [])
    words = shlex.split(job.spec.run or "")
    assert words[:2] == ["exec", "all_reduce_perf_mpi"]


def test_sbatch_benchmark_loads_the_mpi_module(tmp_path: Path) -> None:
    """Without the module, the nccl-tests binaries in Azure's image do not find libmpi."""
    modules = tmp_path / "modules.sh"
    modules.write_text('module() { echo "module $* $NOT_SET"; }\n')
    setup = load_job("nccl-allreduce-sbatch", {}, {}, []).spec.setup or ""
    command = ["bash", "-euo", "pipefail", "-c", setup.replace("/etc/profile.d/modules.sh", str(modules))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip() == "module load mpi/hpcx"
    modules.unlink()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""
