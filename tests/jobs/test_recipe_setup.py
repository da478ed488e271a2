"""The `setup` lines of recipes that edit files of an upstream repository, run against what the repository has."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from jobs.loader import load_job

COMMIT = "ea7aefd8f8e183256992d9fede4d7c71a46d67a5"
"""EleutherAI/gpt-neox, the commit that the recipes name; read 2026-11-22."""
CONFIG_20B: dict[str, str | int] = {
    "vocab_file": "./20B_checkpoints/20B_tokenizer.json",
    "save": "./20B_checkpoints",
    "load": "./20B_checkpoints",
    "pipe_parallel_size": 4,
    "model_parallel_size": 2,
}
"""Keys of configs/20B.yml at that commit that the recipe replaces or must leave alone."""
KEYS_2_7B = {"pipe_parallel_size", "model_parallel_size", "data_impl", "checkpoint_factor", "keep_last_n_checkpoints"}
"""Keys of configs/2-7B.yml at that commit that are near those of the recipe's own file."""


def run_setup(recipe: str, checkout: Path, run_dir: Path, git: str) -> subprocess.CompletedProcess[str]:
    """Run a recipe's setup lines in `checkout`; `git` is the body of a bash function, empty for the real git."""
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
        # Makes git treat every repository as another user's.
        "GIT_TEST_ASSUME_DIFFERENT_OWNER": "1",
    }
    command = ["bash", "-euo", "pipefail", "-c", fake + lines]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)


def key_line(key: str, value: str | int) -> str:
    return f'"{key}": "{value}",' if isinstance(value, str) else f'"{key}": {value},'


def test_the_20b_config_gets_the_layout_and_the_checkpoints(tmp_path: Path) -> None:
    done = run_setup("neox-20b", tmp_path / "neox", tmp_path / "run", f"echo {COMMIT}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    made = yaml.safe_load((tmp_path / "run" / "20B.yml").read_text())
    changed = {"pipe_parallel_size": 6, "model_parallel_size": 4, "save": "/shared/checkpoints"}
    assert made == CONFIG_20B | changed | {"load": "/shared/checkpoints"}


def test_the_2_7b_recipe_gives_no_key_twice() -> None:
    """gpt-neox reads '-' as '_' and refuses a key of two files (megatron/neox_arguments/arguments.py)."""
    own = yaml.safe_load(load_job("neox-2.7b", {}, {}, []).spec.files["local.yml.in"])
    assert not {key.replace("-", "_") for key in own} & KEYS_2_7B


@pytest.mark.parametrize("recipe", ["neox-2.7b", "neox-20b"])
def test_another_commit_is_named(recipe: str, tmp_path: Path) -> None:
    """In a checkout that belongs to another user, which git calls dubious and does not read."""
    checkout = tmp_path / "neox"
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    checkout.mkdir()
    subprocess.run(["git", "init", "-q", str(checkout)], check=True)
    commit = ["git", "-C", str(checkout), *identity, "commit", "-q", "--allow-empty", "-m", "one"]
    subprocess.run(commit, check=True, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    head = subprocess.run(["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    done = run_setup(recipe, checkout, tmp_path / "run", "")
    said = f"{checkout} is at commit {head.stdout.strip()}; check out ea7aefd\n"
    assert (done.returncode, done.stdout) == (2, said), done.stderr


@pytest.mark.parametrize("recipe", ["neox-2.7b", "neox-20b"])
def test_a_folder_that_is_no_checkout_is_named(recipe: str, tmp_path: Path) -> None:
    done = run_setup(recipe, tmp_path / "neox", tmp_path / "run", "")
    assert done.returncode == 2
    assert f"git cannot read the checkout {tmp_path / 'neox'}; clone github.com/EleutherAI/gpt-neox" in done.stdout


def test_the_container_benchmark_is_the_build_with_mpi() -> None:
    """NGC's all_reduce_perf has no MPI: 16 tasks would be 16 tests of one GPU, each successful."""
    job = load_job("nccl-allreduce-container", {}, {}, [])
    words = shlex.split(job.spec.run or "")
    assert words[:2] == ["exec", "all_reduce_perf_mpi"]


def test_the_sbatch_benchmark_loads_the_mpi_of_azures_image(tmp_path: Path) -> None:
    """The libmpi of the image's nccl-tests is in no default path."""
    modules = tmp_path / "modules.sh"
    modules.write_text('module() { echo "module $* $NOT_SET"; }\n')
    setup = load_job("nccl-allreduce-sbatch", {}, {}, []).spec.setup or ""
    command = ["bash", "-euo", "pipefail", "-c", setup.replace("/etc/profile.d/modules.sh", str(modules))]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip() == "module load mpi/hpcx"
    modules.unlink()
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == ""
