"""The `setup` commands in recipes, executed on recorded content of upstream repositories."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.yard.job.test_upstream import FACTS, file_of
from yard.job.loader import load_job

COMMIT: str = FACTS["gpt-neox"]["source"].partition("@")[2]
CONFIG_20B: dict[str, str | int] = file_of("gpt-neox:configs/20B.yml")["keys"]


def run_setup(recipe: str, checkout: Path, run_dir: Path, git: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe's `setup` in `checkout`. `git`: body of a bash function that replaces git, or '' to use the real
    git."""
    lines = load_job(recipe, {}, {}, []).spec.setup or ""
    lines = lines.replace("/shared/venv-neox/bin/activate", "/dev/null")
    (checkout / "configs").mkdir(parents=True, exist_ok=True)
    text = "".join(f"  {key_line(key, value)}\n" for key, value in CONFIG_20B.items())
    (checkout / "configs" / "20B.yml").write_text("{\n" + text + "}\n")
    run_dir.mkdir(exist_ok=True)
    fake = f"git() {{ {git}; }}\n" if git else ""
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(run_dir),
        "RUN_DIR": str(run_dir),
        "CHECKPOINT_DIR": "/shared/checkpoints",
        # With this variable, git assumes that another user owns the repository.
        "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1",
    }
    command = ["bash", "-euo", "pipefail", "-c", fake + lines]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def key_line(key: str, value: str | int) -> str:
    return f'"{key}": "{value}",' if isinstance(value, str) else f'"{key}": {value},'


def test_setup_edits_the_20b_configuration(tmp_path: Path) -> None:
    done = run_setup("neox-20b", tmp_path / "neox", tmp_path / "run", f"echo {COMMIT}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = yaml.safe_load((tmp_path / "run" / "20B.yml").read_text())
    changed = {"pipe_parallel_size": 6, "model_parallel_size": 4, "save": "/shared/checkpoints"}
    assert made == CONFIG_20B | changed | {"load": "/shared/checkpoints"}


def test_setup_writes_the_2_7b_configuration(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    own = load_job("neox-2.7b", {}, {}, []).spec.files["local.yml.in"]
    (run_dir / "local.yml.in").write_text(own)
    done = run_setup("neox-2.7b", tmp_path / "neox", run_dir, f"echo {COMMIT}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = yaml.safe_load((run_dir / "local.yml").read_text())
    places = {"save": "/shared/checkpoints", "load": "/shared/checkpoints", "log-dir": "/shared/checkpoints/logs"}
    assert made == yaml.safe_load(own) | places


@pytest.mark.parametrize("recipe", ["neox-2.7b", "neox-20b"])
def test_setup_refuses_another_commit(recipe: str, tmp_path: Path) -> None:
    checkout = tmp_path / "neox"
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    checkout.mkdir()
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    commit = ["git", "-C", str(checkout), *identity, "commit", "-q", "--allow-empty", "-m", "one"]
    subprocess.run(commit, check=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    done = run_setup(recipe, checkout, tmp_path / "run", "")
    printed = f"{checkout} is at commit {head.stdout.strip()}; check out ea7aefd\n"
    assert (done.returncode, done.stdout) == (2, printed), done.stderr


@pytest.mark.parametrize("recipe", ["neox-2.7b", "neox-20b"])
def test_setup_refuses_a_folder_without_checkout(recipe: str, tmp_path: Path) -> None:
    done = run_setup(recipe, tmp_path / "neox", tmp_path / "run", "")
    assert done.returncode == 2
    assert f"git cannot read the checkout {tmp_path / 'neox'}; clone github.com/EleutherAI/gpt-neox" in done.stdout


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
