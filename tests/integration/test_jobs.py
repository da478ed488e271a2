"""Recipes, `yard reproduce POST --smoke`, a user's own program, command and Slurm script, and `yard run`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, Project, wait_until
from yard.job.loader import has_smoke, load_job, recipe_names
from yard.reproduce.posts import post_names, read_post

pytestmark = [pytest.mark.integration, pytest.mark.full]

_SOFTWARE = re.compile(r"torch( 2\.[0-6] or newer)?")
"""Software on the virtual machines, by its name in recipes. The machines have torch 2.6."""


@pytest.mark.parametrize("recipe", recipe_names())
def test_recipe_runs_at_its_smoke_size(recipe: str, cluster: Project) -> None:
    if not has_smoke(recipe):
        spec = load_job(recipe, {}, {}, []).spec
        pytest.skip(f"no smoke size: {spec.unverified or spec.verified}")
    software = load_job(recipe, {}, {}, [], smoke=True).spec.software
    if software and not _SOFTWARE.fullmatch(software):
        pytest.skip(f"needs {software}")
    cluster.yard("submit", recipe, "--smoke", "--follow", timeout=600)


LONGEST_SECONDS = 300


@pytest.mark.parametrize("post", post_names())
def test_the_smallest_size_of_a_post_runs(post: str, cluster: Project) -> None:
    done = cluster.yard("reproduce", post, "--smoke", timeout=2 * LONGEST_SECONDS)
    jobs = len(read_post(post, smoke=True).jobs)
    assert f"{post}: {jobs} job{'' if jobs == 1 else 's'} completed in " in done.out
    assert done.seconds <= LONGEST_SECONDS


TRAIN = """
import sys
import torch.distributed as dist
import torch
from own_module import NAME
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(NAME, sys.argv[1:], "rank", dist.get_rank(), "of", dist.get_world_size(), "sum", total.item(), flush=True)
dist.destroy_process_group()
"""
BATCH = """#!/bin/bash
#SBATCH --job-name=unchanged
#SBATCH --nodes=1
#SBATCH --time=00:05:00
#SBATCH --output=out-%j.txt
echo "$SLURM_JOB_NUM_NODES nodes, argument $1, SETTING=$SETTING, element ${SLURM_ARRAY_TASK_ID-none}"
srun --ntasks-per-node=1 python3 -c 'import own_module; print("module", own_module.NAME)'
exit "${2-0}"
"""


@pytest.fixture(scope="module")
def project(cluster: Project) -> Path:
    folder = cluster.folder / "my_project"
    folder.mkdir()
    files = {"train.py": TRAIN, "own_module.py": 'NAME = "mine"\n', "job.sbatch": BATCH, ".env": "TOKEN=hidden\n"}
    for name, text in files.items():
        (folder / name).write_text(text)
    for words in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "first"]):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=folder, check=True)
    return folder


def submit(cluster: Project, *words: str) -> int:
    number: int = cluster.yard_json("submit", *words)["id"]
    return number


def test_python_file_trains_on_two_nodes(cluster: Project, project: Path) -> None:
    job = submit(cluster, str(project / "train.py"), "--nodes", "2", "--", "--lr", "1e-4")
    cluster.yard("wait", str(job))
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=project, check=True, capture_output=True, text=True
    ).stdout.strip()
    log = cluster.yard("logs", str(job)).out
    assert log.startswith(f"yard: commit {commit[:12]} with changes\n")
    assert "mine ['--lr', '1e-4'] rank 0 of 2 sum 3.0" in log
    run = next(row["run_dir"] for row in cluster.yard_json("ps") if row["id"] == job)
    listed = cluster.yard("ssh", "--", f"ls -A {run}/code; stat -c %a {run}; cat {run}/snapshot.json").out
    assert ".env" not in listed.split("{")[0].split()
    assert "700" in listed
    assert json.loads(listed[listed.index("{") :])["untracked"] == [".env", "job.sbatch", "own_module.py"]


def test_command_starts_once_on_each_node(cluster: Project) -> None:
    job = submit(cluster, "--nodes", "2", "--no-code", "--", "echo node $NODE_RANK of $NNODES; env | grep -c ^RANK=")
    cluster.yard("wait", str(job))
    assert "node 0 of 2\n1\n" in cluster.yard("logs", str(job)).out
    assert "node 1 of 2\n1\n" in cluster.yard("logs", str(job), "--rank", "1").out


def test_a_training_job_has_a_report(cluster: Project) -> None:
    job = submit(cluster, "train-tiny", "--", "--steps", "6", "--save-every", "3")
    cluster.yard("wait", str(job), timeout=900)
    file, records = cluster.folder / "report.html", str(cluster.folder / "records")
    found = cluster.yard_json("report", str(job), "--output", str(file))
    assert found["job"] == job
    text = file.read_text()
    for part in (f"Job {job}: train-tiny", FIRST, SECOND, "Loss", "Own time of each rank", "Goodput", "Debian GNU"):
        assert part in text, part
    assert job in cluster.yard_json("pull", "--records", records)["copied"]
    compared = cluster.yard_json("diff", str(job), str(job), "--records", records)
    assert compared["differences"] == []


HANGS = """\
import os, time
from pathlib import Path
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, total = dist.get_rank(), torch.ones(1)
beat = Path(os.environ["RUN_DIR"], f"heartbeat-{rank}")
def load_batch():
    while True:
        time.sleep(1)
def step():
    dist.all_reduce(total)
    beat.write_text("x")
step()
if rank == 1:
    load_batch()
step()
"""


def test_a_hang_is_shown_and_explained(cluster: Project) -> None:
    (cluster.folder / "hangs.py").write_text(HANGS)
    (cluster.folder / "hangs.yaml").write_text(
        "name: hangs\nnodes: 2\ntime: 20m\nheartbeat: 10s\nworkload: hangs.py\nenvironment: none\n"
    )
    job = submit(cluster, "hangs.yaml")
    wait_until("the job to run", 120, lambda: "RUNNING" in str(cluster.yard_json("ps")))
    shown = cluster.yard("top").out
    assert f" {job} " in shown
    assert FIRST in shown
    assert cluster.yard("wait", str(job), timeout=600, check=False).code != 0
    log = cluster.yard("logs", str(job)).out
    assert "has written no heartbeat for" in log
    assert re.search(r"yard: rank 1: in load_batch \(.*hangs\.py:\d+\)", log)
    assert re.search(r"yard: rank 0: in .*, called from step \(.*hangs\.py:\d+\)", log)
    document = cluster.yard_json("report", str(job), "--output", str(cluster.folder / "hang.html"))
    assert document["job"] == job
    page = (cluster.folder / "hang.html").read_text()
    assert "the job hung; rank" in page
    assert "rank 1: in load_batch" in page


def test_results_are_copied_in_both_directions(cluster: Project, project: Path) -> None:
    job = submit(cluster, "--no-code", "--", "mkdir 'out [1]'; head -c 50M /dev/urandom >'out [1]/a b'")
    cluster.yard("wait", str(job))
    results = project.parent / "results"
    cluster.yard("cp", f"{job}:out [1]", str(results))
    cluster.yard("cp", str(results), "last:copy")
    run = next(row for row in cluster.yard_json("ps") if row["id"] == job)["run_dir"]
    cluster.yard("ssh", "--", f"cmp {run}/copy/'a b' {run}/'out [1]/a b'")
    (results / "a b").write_text("different")
    assert "different files exist: a b" in cluster.yard("cp", f"{job}:out [1]/a b", str(results), check=False).out


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_notebook_is_reached_through_ssh(cluster: Project) -> None:
    found = cluster.yard_json("notebook", "--time", "20m", timeout=1500)
    parts = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/lab\?token=(\w+)", found["url"])
    assert parts
    place, token = f"127.0.0.1:{parts[1]}", parts[2]
    with subprocess.Popen(found["forward"], stdin=subprocess.DEVNULL) as forward:
        try:
            wait_until("the port", 60, partial(answers, int(parts[1])))
            with urllib.request.urlopen(f"http://{place}/lab?token={token}", timeout=60) as reply:
                assert b"JupyterLab" in reply.read()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(f"http://{place}/api/kernels", timeout=60)
        finally:
            forward.terminate()
    assert token not in cluster.yard("logs", str(found["id"])).out
    cluster.yard("cancel", str(found["id"]))


def test_an_editors_connection_is_a_step_of_the_job(cluster: Project) -> None:
    job = submit(cluster, "--no-code", "--nodes", "1", "--", "sleep 600")
    wait_until("the job", 120, lambda: cluster.yard("code", str(job), "--json", check=False).code == 0)
    found = cluster.yard_json("code", str(job))
    ssh = ["ssh", "-F", found["config"], found["host"]]
    done = subprocess.run(
        [*ssh, "-tt", "id -un; echo job $SLURM_JOB_ID; tty"], check=True, capture_output=True, text=True
    )
    assert done.stdout.split()[:3] == ["trainer", "job", str(job)]
    assert "/dev/pts/" in done.stdout
    cluster.yard("cancel", str(job))
    assert subprocess.run([*ssh, "true"], check=False, capture_output=True).returncode == 255


def test_slurm_script_runs_unchanged(cluster: Project, project: Path) -> None:
    script = str(project / "job.sbatch")
    done = cluster.yard("submit", script, "--nodes", "2", "--set", "SETTING=a b", "--follow", "--", "x")
    assert "2 nodes, argument x, SETTING=a b, element none\n" in done.out
    assert done.out.count("module mine") == 2
    failed = submit(cluster, script, "--", "y", "3")
    assert cluster.yard("wait", str(failed), check=False).code == 3
    assert "1 nodes, argument y" in cluster.yard("logs", str(failed)).out
    again = cluster.yard_json("resume", str(failed))["id"]
    assert cluster.yard("wait", str(again), check=False).code == 3
    assert "1 nodes, argument y" in cluster.yard("logs", str(again)).out


def test_waiting_script_can_be_cancelled(cluster: Project, project: Path) -> None:
    first = submit(cluster, "--no-code", "--nodes", "2", "--", "sleep 60")
    script = submit(cluster, str(project / "job.sbatch"), "--after", str(first))
    own = submit(cluster, "--no-code", "--after", str(first), "--", "hostname")

    def reasons() -> list[str]:
        return [row["reason"] for row in cluster.yard_json("ps") if row["id"] in (script, own)]

    # Until slurmctld has examined a new job, its reason can be Resources.
    wait_until("the dependencies", 60, lambda: reasons() == ["Dependency", "Dependency"])
    cluster.yard("cancel", str(script))
    assert cluster.yard("wait", str(script), check=False).code != 0
    cluster.yard("cancel", str(first))
    ended = "the end of the job whose dependency failed"
    wait_until(ended, 180, lambda: cluster.job_state({"id": own}) == "CANCELLED")


def test_array_runs_each_element(cluster: Project, project: Path) -> None:
    done = cluster.yard("submit", "--no-code", "--array", "3-4%1", "--json", "--", "echo element $ARRAY_INDEX").out
    first, second = (json.loads(line)["id"] for line in done.splitlines() if line.startswith("{"))
    for job, element in ((first, 3), (second, 4)):
        cluster.yard("wait", str(job))
        assert f"element {element}\n" in cluster.yard("logs", str(job)).out
    array = submit(cluster, str(project / "job.sbatch"), "--array", "1-2")
    wait_until(
        "the array",
        240,
        lambda: {row["state"] for row in cluster.yard_json("ps") if row["id"] >= array} == {"COMPLETED"},
    )
    logs = [cluster.yard("logs", str(row["id"])).out for row in cluster.yard_json("ps") if row["id"] >= array]
    assert sorted(re.findall(r", element (\d)$", "\n".join(logs), re.MULTILINE)) == ["1", "2"]


PORT = 28765


def queue(cluster: Project) -> str:
    return cluster.on(HEAD, "squeue -h -o '%j %T'").strip()


def fetch() -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/", timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def test_command_runs_on_allocated_nodes(cluster: Project) -> None:
    done = cluster.yard("run", "--nodes", "2", "--", "srun", "hostname")
    assert {FIRST, SECOND} <= set(done.out.split())
    done = cluster.yard("run", "--", "bash", "-c", "echo on $(hostname) with $(nproc) processors; exit 7", check=False)
    assert done.code == 7, done.out
    assert "on it-gpu-" in done.out
    wait_until("the release of the nodes", 60, lambda: queue(cluster) == "")


def test_shell_has_a_terminal(cluster: Project) -> None:
    begin = shlex.join([sys.executable, "-m", "yard", "run"])
    terminal = cluster.start("script", "-qefc", begin, "/dev/null", stdin=subprocess.PIPE)
    output, _ = terminal.communicate("tty; echo on $(hostname); exit 3\n", timeout=180)
    assert terminal.returncode == 3, output
    assert "/dev/pts/" in output
    assert "on it-gpu-" in output
    wait_until("the release of the node", 60, lambda: queue(cluster) == "")


def test_port_is_forwarded_until_ctrl_c(cluster: Project) -> None:
    serve = ("python3", "-m", "http.server", str(PORT), "--bind", "127.0.0.1", "--directory", "/etc/trainyard")
    session = cluster.start("python", "-m", "yard", "run", "--port", str(PORT), "--", *serve)
    wait_until("the page", 180, lambda: "fabric.env" in fetch(), 1.0)
    os.killpg(session.pid, signal.SIGINT)  # a terminal also signals ssh
    output, _ = session.communicate(timeout=60)
    assert session.returncode == 130, output
    assert "not forwarded" not in output
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", PORT)) != 0
    wait_until("the release of the node", 60, lambda: queue(cluster) == "")
    for node in (FIRST, SECOND):
        assert cluster.on(node, "pgrep -fc '[h]ttp.server' || true").strip() == "0"
