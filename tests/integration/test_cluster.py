"""A cluster of virtual machines: bring-up, jobs, faults and repairs.

The tests share one cluster and run in the order in which they are defined. Each test leaves the cluster ready for the
next, except the last one, which removes the cluster after the tests of all other files.
"""

from __future__ import annotations

import json
import shlex
import socket
from pathlib import Path

import pytest

from tests.integration.project import FIRST, HEAD, SECOND, THIRD, Project, alive, wait_until

pytestmark = pytest.mark.integration


def test_all_nodes_are_ready_and_unchanged(cluster: Project) -> None:
    assert cluster.states() == {FIRST: "idle", SECOND: "idle"}
    outputs = json.loads(cluster.stack("outputs").out)
    assert outputs["cluster"]["contract"] == 1
    assert outputs["ssh"] == "ssh -p 23100 ops@127.0.0.1"
    assert [node["name"] for node in outputs["cluster"]["nodes"]] == [FIRST, SECOND]
    # Without nfsdcld, a new file waits for 20 s after each start of the server, because the server does not know
    # whether a client still has open files.
    assert cluster.on(HEAD, "systemctl is-active nfsdcld", check=False).strip() == "active"
    cluster.stack("preview", "--expect-no-changes")


def test_secret_files_are_not_readable(cluster: Project) -> None:
    state = next((cluster.folder / ".trainyard" / "state").rglob("local.json")).read_text()
    assert "PRIVATE KEY" not in state
    key = cluster.on(HEAD, "sudo base64 -w0 /etc/munge/munge.key").strip()
    assert key
    assert key not in state
    for node in (HEAD, FIRST):
        user_data = cluster.on(node, "sudo cat /var/lib/cloud/instance/user-data.txt")
        assert "PRIVATE KEY" not in user_data
        assert key not in user_data


def test_hello_runs_on_both_nodes(cluster: Project) -> None:
    job = cluster.submit("hello")
    cluster.follow(str(job["id"]))
    output = cluster.on(HEAD, f"sudo sh -c 'cat {job['run_dir']}/*.log'")
    assert FIRST in output
    assert SECOND in output
    assert "Permission denied" in cluster.on(HEAD, f"cat {job['run_dir']}/job.sbatch 2>&1 || true")


def test_yard_lists_and_cancels_jobs_and_lists_nodes(cluster: Project) -> None:
    job = cluster.sleeper()
    assert cluster.job_state({"id": int(job)}) == "RUNNING"
    cluster.yard("cancel", job)
    assert cluster.yard("wait", job, timeout=120, check=False).code != 0
    assert {row["id"]: row["state"] for row in cluster.yard_json("ps", "--all")}[int(job)].startswith("CANCELLED")
    assert cluster.yard("hostfile", "--format", "deepspeed").out == f"{FIRST} slots=2\n{SECOND} slots=2\n"
    assert cluster.yard("hostfile", "--format", "ips").out == "10.77.2.1\n10.77.2.2\n"
    cluster.wait_idle(60)


DECIDE = """
import sys, time
sys.path.insert(0, "/usr/local/lib/trainyard")
from repair.idle_jobs import IdleJobs, IdleLimit
from repair.service import scancel, scontrol, squeue
jobs = IdleJobs(IdleLimit(1, "end"), scontrol, squeue, scancel)
for now in (0.0, 300.0):
    jobs.run_once(scontrol("-o", "show", "node"), now, time.time())
print(jobs.notice)
"""
"""Decides about the jobs that nodes report as idle, five minutes apart."""


@pytest.mark.full
def test_only_one_task_of_an_array_with_unused_gpus_ends(cluster: Project) -> None:
    script = "--chdir=/shared --output=/shared/idle-%A-%a.log --array=1-2 --gpus=1 --wrap='sleep 600'"
    array = cluster.yard("ssh", "--", f"sbatch --parsable {script}").out.split()[-1]
    listing = f"squeue -h -j {array} -t R -o '%A %F_%K %N'"
    wait_until("both tasks", 120, lambda: len(cluster.on(HEAD, listing).splitlines()) == len((FIRST, SECOND)))
    rows = [line.split() for line in cluster.on(HEAD, listing).splitlines()]
    # The number of this task is also the number of the array.
    [[number, task, node]] = [row for row in rows if row[0] == array]
    file = f"/run/trainyard/health/gpus/{number}"
    assert cluster.on(node, f"cat {file}").strip() in {"0", "1"}
    cluster.as_root(node, f"scontrol update nodename={node} extra=idle-gpu:$(date +%s):{number}=60")
    shown = cluster.on(HEAD, f"sudo python3 -c {shlex.quote(DECIDE)} 2>&1")
    assert f"jobs that do not use their GPUs: {task}; " in shown
    wait_until("the end of the task", 120, lambda: len(cluster.on(HEAD, listing).splitlines()) == 1)
    wait_until("the epilog", 60, lambda: "gone" in cluster.on(node, f"test -e {file} || echo gone"))
    assert "have not been used for 1 minutes" in cluster.on(HEAD, f"sudo cat /shared/idle-{task.replace('_', '-')}.log")
    words = "cancelled; ended because its GPUs were not used for 1 minutes (limits.idle_gpu)"
    assert {row["id"]: row["why"] for row in cluster.yard_json("ps")}[int(number)] == words
    accounted = f"sacct -n -X -P -o AdminComment -j {task}"
    wait_until("the accounting", 60, lambda: "idle-gpu:end:1" in cluster.on(HEAD, accounted))
    cluster.as_root(node, f"scontrol update nodename={node} extra=")
    cluster.on(HEAD, f"sudo scancel {array}")
    cluster.wait_idle(120)


def test_secret_of_a_job_is_hidden_from_other_users(
    cluster: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, pattern = "hf-Zq7-hidden-value", "hf-Zq7-hidde[n]-value"  # the pattern does not match its own process
    monkeypatch.setenv("JOB_TOKEN", secret)
    file = tmp_path / "keeper.yaml"
    file.write_text("name: keeper\nnodes: 2\nsecrets: [JOB_TOKEN]\nrun: echo length ${#JOB_TOKEN}; sleep 60\n")
    job = cluster.submit(str(file))
    log = f"{job['run_dir']}/job.log"
    expected = f"length {len(secret)}"
    wait_until("the job's output", 120, lambda: expected in cluster.on(HEAD, f"sudo cat {log} 2>/dev/null || true"))
    for node in (HEAD, FIRST):
        for user in ("ops", "nobody"):
            read = f"sudo -u {user} cat {job['run_dir']}/secrets.sh 2>&1 || true"
            assert "Permission denied" in cluster.on(node, read)
        places = "/proc/[0-9]*/cmdline /var/log /var/spool/slurmd"
        assert cluster.on(node, f"sudo grep -rlsa '{pattern}' {places} || true") == ""
    script = cluster.on(HEAD, f"sudo scontrol write batch_script {job['id']} -")
    assert "keeper" in script
    assert secret not in script + cluster.on(HEAD, f"sudo cat {log}; scontrol show job {job['id']}")
    cluster.yard("cancel", str(job["id"]))
    cluster.wait_idle()


def test_gpus_are_allocated_and_confined(cluster: Project) -> None:
    ask = "for i in 0 1; do (exec 3</dev/fakegpu$i) 2>&1 || true; done"
    run = "sudo setpriv --reuid=trainer --regid=trainer --init-groups srun --chdir=/ -N1 --mem=64"
    one = cluster.on(HEAD, f"{run} --gpus-per-node=1 bash -c {json.dumps(ask)!s}".replace("$", "\\$"))
    assert "No such device or address" in one
    assert "Operation not permitted" in one


def test_all_reduce_prints_its_table_and_is_accounted(cluster: Project) -> None:
    job = cluster.submit("allreduce")["id"]
    table = cluster.follow(job)
    assert "busbw" in table
    assert "# Avg bus bandwidth" in table
    assert cluster.on(HEAD, f"sudo sacct -n -X -P -o jobname,state -j {job}").split()[-1] == "allreduce|COMPLETED"
    shown = cluster.yard("top").out
    assert FIRST in shown
    assert SECOND in shown
    cluster.yard("report", str(job), "--output", str(cluster.folder / "report.html"))
    page = (cluster.folder / "report.html").read_text()
    for part in (f"Job {job}: allreduce", FIRST, SECOND, "completed"):
        assert part in page, part


@pytest.mark.full
def test_rebooted_head_keeps_its_queue(cluster: Project) -> None:
    both = f"nodename={FIRST},{SECOND}"
    cluster.on(HEAD, f"sudo scontrol update {both} state=drain reason=test")
    try:
        waiting = str(cluster.submit("hello", "--name", "waiting")["id"])
        cluster.reboot(HEAD)
        # The head must recover without `up` and without manual commands on a node.
        cluster.wait_ready(HEAD)
        assert cluster.job_field(waiting, "JobState") == "PENDING"
        # slurmctld refuses to change the state of a node that has not registered again. Because `sinfo` already shows
        # "drained" before the registration, the test reads the underlying state from `scontrol`.
        known = f"scontrol -o show node {FIRST},{SECOND}"
        wait_until("both nodes' registration", 90, lambda: cluster.on(HEAD, known).count("State=IDLE+DRAIN") == 2)
    finally:
        cluster.on(HEAD, f"sudo scontrol update {both} state=resume")
    cluster.follow(waiting)
    output = cluster.on(HEAD, "sudo sacct -a -n -X -P -o jobname,state")
    assert "waiting|COMPLETED" in output
    assert "hello|COMPLETED" in output  # this job ended before the reboot


@pytest.mark.full
def test_third_worker_is_added_and_removed(cluster: Project) -> None:
    before = {node: cluster.pid(node) for node in (HEAD, FIRST, SECOND)}
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(count=3))
    cluster.stack("up", timeout=900)
    assert {node: cluster.pid(node) for node in before} == before
    assert cluster.states() == {FIRST: "idle", SECOND: "idle", THIRD: "idle"}
    third = cluster.pid(THIRD)
    cluster.edit(lambda spec: spec["nodes"]["gpu"].update(count=2))
    cluster.stack("up", timeout=600)
    assert not alive(third)
    assert {node: cluster.pid(node) for node in before} == before
    wait_until("Slurm to forget the node", 60, lambda: set(cluster.states()) == {FIRST, SECOND})


@pytest.mark.full
def test_doctor_reports_the_node_with_a_wrong_munge_key(cluster: Project) -> None:
    cluster.yard("doctor", timeout=300)
    spoil = "head -c 128 /dev/urandom | sudo tee /etc/munge/munge.key >/dev/null"
    cluster.on(SECOND, f"sudo cp -a /etc/munge/munge.key /root/right.key; {spoil}; sudo systemctl restart munge")
    try:
        done = cluster.yard("doctor", timeout=300, check=False)
    finally:
        cluster.on(SECOND, "sudo cp -a /root/right.key /etc/munge/munge.key; sudo systemctl restart munge slurmd")
    assert done.code == 1
    blamed = [line for line in done.out.splitlines() if "munge" in line.lower()]
    assert any(SECOND in line for line in blamed), done.out
    assert not any(FIRST in line for line in blamed), done.out


def _port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_down_leaves_nothing(cluster: Project) -> None:
    pids = [cluster.pid(node) for node in (HEAD, FIRST, SECOND)]
    cluster.down()
    assert not [pid for pid in pids if alive(pid)]
    assert all(_port_is_free(port) for port in range(23100, 23140))
    left = [path for path in (cluster.folder / ".trainyard" / "run").rglob("*") if path.is_file() or path.is_socket()]
    assert left == []
    assert list((cluster.folder / ".trainyard").rglob("locks/**/*.json")) == []
    here = str(cluster.folder).encode()
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes()
        except OSError:
            continue
        assert not (b"qemu" in command or b"vde_switch" in command) or here not in command, command
