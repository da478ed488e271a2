"""Attacks through Slurm by root on a worker, who has the munge key and can act as every user, for example as SlurmUser.

Each attack succeeds with the configuration of commit 4a35eb0: the same commands were run with Slurm 24.11.5 of Debian
13 and with that commit's slurm.conf, prolog and units (2026-11-24).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.project import AS_TRAINER, FIRST, HEAD, SECOND, Project, wait_until
from tests.integration.survivors import finish, job_file

pytestmark = pytest.mark.integration

AS_SLURM = "sudo setpriv --reuid=slurm --regid=slurm --clear-groups"
PROOF = "/var/lib/slurm/slurmctld/attacked"
"""A file that slurmctld may write."""
PROGRAM = f"#!/bin/sh\\nid >{PROOF}\\n"
ACCOUNTING = "timeout 5 bash -c '</dev/tcp/10.77.0.4/6819' && echo open"


def attacked(cluster: Project) -> bool:
    return "yes" in cluster.on(HEAD, f"sudo test -e {PROOF} && echo yes", check=False)


@pytest.fixture(scope="module")
def program(cluster: Project) -> str:
    """A program in the shared folder. Root on a worker can write it, but not with uid 0."""
    cluster.on(FIRST, f"{AS_SLURM} sh -c 'printf \"{PROGRAM}\" >/shared/attack; chmod 755 /shared/attack'")
    return "/shared/attack"


@pytest.fixture
def clean_queue(cluster: Project) -> Iterator[None]:
    """After the test, end all jobs and return the second node to service. Slurm drains a node whose prolog fails."""
    yield
    cluster.on(HEAD, "for user in ops root trainer; do sudo scancel --user=$user; done")
    wait_until("the jobs to end", 60, lambda: not cluster.on(HEAD, "squeue -h").strip())
    cluster.on(HEAD, f"sudo scontrol update nodename={SECOND} state=resume", check=False)
    wait_until("both nodes", 90, lambda: cluster.states() == {FIRST: "idle", SECOND: "idle"})


@pytest.fixture
def open_partition(cluster: Project, clean_queue: None) -> Iterator[None]:
    """A partition that SlurmUser has opened for all users, from a worker."""
    update = f"{AS_SLURM} scontrol update partition=gpu"
    cluster.on(FIRST, f"{update} AllowGroups=ALL DisableRootJobs=NO")
    yield
    cluster.on(FIRST, f"{update} AllowGroups=trainer DisableRootJobs=YES")


def test_slurmctld_refuses_triggers(cluster: Project, program: str) -> None:
    output = cluster.on(
        FIRST, f"{AS_SLURM} strigger --set --drained --node={SECOND} --program={program} 2>&1", check=False
    )
    assert "Requested operation is presently disabled" in output


def test_slurmctld_runs_no_mail_program(cluster: Project, program: str) -> None:
    cluster.on(
        HEAD, f"sudo install -m 755 {program} /usr/local/bin/attack && sudo ln -sf /usr/local/bin/attack /usr/bin/mail"
    )
    mail = "--mail-type=END --mail-user=somebody --output=/dev/null"
    cluster.on(HEAD, f"{AS_TRAINER} timeout 100 sbatch --wait {mail} --wrap true")
    log = "sudo journalctl -u slurmctld --no-pager -o cat"
    wait_until("slurmctld to send mail", 60, lambda: "MailProg returned error" in cluster.on(HEAD, log))
    # Outside of slurmctld's restrictions, slurm can run the program.
    assert not attacked(cluster)
    cluster.on(HEAD, f"{AS_SLURM} /usr/bin/mail")
    assert attacked(cluster)
    cluster.on(HEAD, f"sudo rm {PROOF}")
    cluster.on(HEAD, "sudo rm /usr/bin/mail /usr/local/bin/attack")


def test_slurmdbd_accepts_no_connection_from_workers(cluster: Project) -> None:
    assert "open" not in cluster.on(FIRST, ACCOUNTING, check=False)
    assert "open" in cluster.on(HEAD, ACCOUNTING.replace("10.77.0.4", "127.0.0.1"))


def test_slurmdbd_runs_no_archive_script(cluster: Project, program: str) -> None:
    """Root on a worker can log in to the head as the job user, and bring the munge key."""
    dump = f"{AS_SLURM} timeout 60 sacctmgr -i archive dump Script={program} PurgeJobAfter=1months 2>&1"
    assert "Problem accessing file" in cluster.on(HEAD, dump, check=False)
    assert not attacked(cluster)
    assert "slurmdbd is active" in cluster.on(HEAD, "echo slurmdbd is $(systemctl is-active slurmdbd)")


@pytest.mark.parametrize("daemon", ["slurmctld", "slurmdbd"])
def test_daemons_on_the_head_run_no_other_program(cluster: Project, daemon: str) -> None:
    pid = f"$(systemctl show --value -p MainPID {daemon})"
    shell = cluster.on(HEAD, f"sudo nsenter --mount --target {pid} /bin/sh -c 'echo ran' 2>&1", check=False)
    assert "Permission denied" in shell
    facts = cluster.on(HEAD, f"sudo cat /proc/{pid}/status /proc/{pid}/mounts").splitlines()
    assert {"NoNewPrivs:\t1", "CapBnd:\t0000000000000000"} <= set(facts)
    root = next(line.split()[3].split(",") for line in facts if line.split()[1:2] == ["/"])
    assert {"ro", "noexec", "nosuid"} <= set(root)


def test_slurm_cannot_replace_its_state_folder(cluster: Project) -> None:
    move = f"{AS_SLURM} mv -T /var/lib/slurm/slurmctld /var/lib/slurm/x 2>&1"
    assert "Permission denied" in cluster.on(HEAD, move, check=False)


@pytest.mark.parametrize("user", ["ops", "nobody"])
def test_other_users_cannot_run_jobs(cluster: Project, user: str) -> None:
    as_user = f"sudo setpriv --reuid={user} --regid=$(id -g {user}) --clear-groups"
    job = f"cd /; {as_user} timeout 60 srun --immediate=5 --nodelist={SECOND} id 2>&1"
    output = cluster.on(FIRST, job, check=False)
    assert "Requested partition configuration not available now" in output
    assert "uid=" not in output


@pytest.mark.parametrize(
    "job",
    [
        "sudo setpriv --reuid=ops --regid=ops --clear-groups timeout 60 srun --immediate=20 sudo -n id",
        "sudo timeout 60 srun --immediate=20 id",
        "sudo timeout 20 sbatch --wait --uid=2000 --gid=disk --output=/shared/groups --wrap id; cat /shared/groups",
    ],
    ids=["admin", "root", "group"],
)
@pytest.mark.usefixtures("open_partition")
def test_other_nodes_refuse_foreign_users_and_groups(cluster: Project, job: str) -> None:
    command = job.replace("srun ", f"srun --nodelist={SECOND} ").replace("sbatch ", f"sbatch --nodelist={SECOND} ")
    output = cluster.on(FIRST, f"cd /; {command} 2>&1", check=False)
    assert "uid=" not in output
    assert cluster.states()[SECOND].startswith("drain")


@pytest.mark.usefixtures("clean_queue")
def test_other_nodes_refuse_tasks_without_a_job(cluster: Project) -> None:
    job = f"cd /; sudo timeout 60 srun --no-allocate --nodelist={SECOND} id 2>&1"
    output = cluster.on(FIRST, job, check=False)
    assert "Job prolog failed" in output
    assert "uid=" not in output


_WAITING = """
import os
import time
from pathlib import Path

place = Path(os.environ["RUN_DIR"])
(place / f"begun-{os.environ['RANK']}").touch()
while not (place / "go").exists():
    time.sleep(0.5)
print("rank", os.environ["RANK"], "has waited", flush=True)
"""


def connects(cluster: Project, node: str, user: str, port: int) -> str:
    """Return "open", "refused" or "silent": the result of a connection from the node to the job's port on FIRST."""
    line = f"timeout 5 bash -c ': <>/dev/tcp/{FIRST}/{port}' 2>&1; echo code $?"
    found = cluster.on(node, f"sudo setpriv --reuid={user} --regid=65534 --clear-groups bash -c {shlex.quote(line)}")
    if "refused" in found:
        return "refused"
    return {"0": "open", "124": "silent"}.get(found.split()[-1], found)


def test_only_the_job_user_reaches_an_elastic_rendezvous(cluster: Project, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(_WAITING)
    job = cluster.submit(job_file(tmp_path, "waiting", launcher="torchrun-elastic", nodes=2, workload="waiting.py"))
    folder = job["run_dir"]
    begun = f"sudo -u trainer sh -c 'ls {folder}/begun-* | wc -l'"
    wait_until("both ranks", 600, lambda: cluster.on(HEAD, begun, check=False).strip() == "2")
    port = 20000 + int(job["id"]) * 10 % 12000
    assert f":{port} " in cluster.on(FIRST, "sudo ss -Hltn")
    assert connects(cluster, SECOND, "65534", port) == "refused"
    assert connects(cluster, FIRST, "65534", port) == "silent"
    assert connects(cluster, SECOND, "2000", port) == connects(cluster, FIRST, "2000", port) == "open"
    assert connects(cluster, HEAD, "0", port) == "open"
    cluster.on(HEAD, f"sudo -u trainer touch {folder}/go")
    assert "rank 0 has waited" in finish(cluster, job)
