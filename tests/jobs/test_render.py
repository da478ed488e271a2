"""Rendered scripts: golden for every recipe and launcher, valid bash, and words that arrive as they were written."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from jobs.errors import JobFileError
from jobs.facts import Cluster
from jobs.loader import LoadedJob, load_job
from jobs.placement import place
from jobs.render import render_files, render_script, shell_word
from tests.conftest import CheckGolden
from tests.jobs.conftest import FakeStack

JOBS = Path(__file__).parents[2] / "jobs"


LOCAL = ("allreduce", "hello", "train-tiny")
"""Recipes that are small by themselves, and whose whole scripts are goldens."""


@pytest.mark.parametrize("recipe", LOCAL)
def test_recipes_fit_the_local_stack(recipe: str, local: Cluster, golden: CheckGolden) -> None:
    job = load_job(recipe, {}, {}, [])
    placement = place(job, local)
    assert placement.nodes == 2
    # One CPU a machine: a second task on it would wait for ever.
    assert placement.tasks_per_node == 1
    golden(f"jobs/local/{recipe}.sbatch", render_script(job, placement))


GOLDEN = Path(__file__).parents[1] / "golden" / "jobs"
SCRIPTS = sorted([*JOBS.glob("*.sh"), *JOBS.glob("probes/*.sh"), *GOLDEN.rglob("*.sbatch")])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_scripts_are_clean_bash(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    shellcheck = shutil.which("shellcheck")
    assert shellcheck, "shellcheck comes with the development packages"
    done = subprocess.run([shellcheck, "--shell=bash", str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == ""


@pytest.mark.parametrize(
    "text",
    ["plain", "", "two words", "it's", '"quoted"', "$RUN_DIR/x y", "a$RANK${RANK}b", "`id`;*", "back\\slash", "\n"],
)
def test_words_reach_the_workload_as_written(text: str) -> None:
    script = f"RUN_DIR='/run dir' RANK=7; printf %s {shell_word(text)}"
    said = subprocess.run(["bash", "-uc", script], capture_output=True, text=True, check=True).stdout
    assert said == text.replace("${RANK}", "7").replace("$RANK", "7").replace("$RUN_DIR", "/run dir")


def job_of(tmp_path: Path, text: str) -> LoadedJob:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    return load_job(str(file), {}, {}, [])


def test_shell_lines_travel_beside_the_script(tmp_path: Path, local: Cluster) -> None:
    job = job_of(tmp_path, "name: fine\nrun: |\n  echo one\n  echo two\n")
    files = render_files(job, place(job, local))
    assert sorted(files) == ["job.sbatch", "run.sh"]
    assert files["run.sh"] == "echo one\necho two\n"


def test_part_of_a_node_is_not_taken_whole(tmp_path: Path, wide: Cluster) -> None:
    job = job_of(tmp_path, "name: fine\nrun: echo\ngpus_per_node: 2\nmemory_per_node: 64G\ntime: 2d\n")
    script = render_script(job, place(job, wide))
    assert "--exclusive" not in script
    assert "#SBATCH --mem=64G\n" in script
    assert "#SBATCH --time=2-00:00:00\n" in script
    assert "readonly gpus_per_node=2 tasks_per_node=2\n" in script


@pytest.mark.parametrize(
    ("lines", "path"), [("nodes: 3", "nodes"), ("gpus_per_node: 4", "gpus_per_node"), ("group: cpu", "group")]
)
def test_what_does_not_fit_is_refused(lines: str, path: str, tmp_path: Path, local: Cluster) -> None:
    job = job_of(tmp_path, f"name: fine\nrun: echo\n{lines}\n")
    with pytest.raises(JobFileError) as caught:
        place(job, local)
    assert [problem.path for problem in caught.value.problems] == [path]


def test_the_script_runs_only_what_it_is(stack: FakeStack, local: Cluster, tmp_path: Path) -> None:
    """A rank takes its place in the world from Slurm's variables, and speaks in its own log."""
    job = job_of(tmp_path, "name: fine\nrun: echo $RANK of $WORLD_SIZE at $NODE_RANK\n")
    files = render_files(job, place(job, local))
    fabric = tmp_path / "fabric.env"
    fabric.write_text("GLOO_SOCKET_IFNAME=eth7\n")
    for name, text in files.items():
        (tmp_path / name).write_text(text.replace("/etc/trainyard/fabric.env", str(fabric)))
    for rank in (0, 1):
        slurm = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": "0", "SLURM_NODEID": str(rank)}
        given = {"RUN_DIR": str(tmp_path), "NODE_IPS": "10.0.0.1,10.0.0.2", "WORLD_SIZE": "2", "JOB_NAME": "fine"}
        said = subprocess.run(
            ["bash", str(tmp_path / "job.sbatch"), "task"],
            env={"PATH": "/usr/bin:/bin", **given, **slurm},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        words = f"{rank} of 2 at {rank}\n"
        assert (said, (tmp_path / "rank-1.log").exists()) == ((words, False) if rank == 0 else ("", True))
    assert (tmp_path / "rank-1.log").read_text() == "1 of 2 at 1\n"


def test_shell_lines_of_a_job_read_nobodys_start_up_file(tmp_path: Path, local: Cluster) -> None:
    """A shell below sshd would; Debian's own stops at variables that are not set, which a job's shell forbids."""
    job = job_of(tmp_path, "name: quiet\nnodes: 1\nrun: echo work\n")
    files = render_files(job, place(job, local))
    line = next(line for line in files["job.sbatch"].splitlines() if "run.sh" in line)
    (tmp_path / "run.sh").write_text(files["run.sh"])
    (tmp_path / ".bashrc").write_text("echo start-up file\n")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "RUN_DIR": str(tmp_path), "SSH_CLIENT": "10.0.0.1 1 22"}
    done = subprocess.run(["bash", "--norc", "-c", line], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("work\n", "")
