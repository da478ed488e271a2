"""Two people and an admin on one cluster: their work, attempts to cross the borders, and changes of the stack file."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration import survivors
from tests.integration.project import FIRST, HEAD, SECOND, Done, Project, wait_until

pytestmark = pytest.mark.integration

SECRET = "hunter2"  # noqa: S105
PORT = 21000
LONG = f"""\
name: long
run: |
  echo "$(id -un) has $SECRET"
  mkdir /tmp/torchinductor_bob && ls /tmp >"$RUN_DIR/tmp"
  echo private >"$RUN_DIR/result"
  exec python3 -m http.server {PORT} --directory /usr/share
memory_per_node: 100M
secrets: [SECRET]
time: 30m
"""
"""A job with a secret, a private file, and an open port on its node. A machine has one core, so it has one job."""
BOTH_NODES = "name: both\nnodes: 2\nrun: echo rank $RANK of $(id -un)\n"
READABLE = """\
name: open
run: echo for all; echo private >$RUN_DIR/result; exit 1
memory_per_node: 100M
readable_by: vision
"""


@dataclass
class Person:
    """A person with an own SSH agent, who uses yard with a file without keys."""

    cluster: Project
    name: str
    folder: Path
    admin: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Path:
        return self.folder / self.name

    @property
    def entry(self) -> dict[str, Any]:
        """The person's entry in the stack file."""
        public = self.key.with_suffix(".pub").read_text().strip()
        return {"name": self.name, "ssh_keys": [public], "admin": self.admin, "accounts": ["vision"]}

    def prepare(self) -> None:
        """Create the person's key and environment."""
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key], check=True)
        self.environment = {
            **os.environ,
            "TRAINYARD_KEY": str(self.key),
            "TRAINYARD_OUTPUTS": str(self.folder / f"{self.name}.json"),
            "TRAINYARD_USER": self.name,
            "SECRET": SECRET,
        }

    def receive(self) -> None:
        """Get the outputs file from the operator."""
        self.cluster.yard("refresh", "--save", self.environment["TRAINYARD_OUTPUTS"])

    def yard(self, *words: str, seconds: float = 180, check: bool = True) -> Done:
        command = [sys.executable, "-m", "yard", *words]
        done = subprocess.run(
            command, cwd=self.cluster.folder, env=self.environment, capture_output=True, text=True, check=False,
            timeout=seconds, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        out = done.stdout + done.stderr
        sys.stdout.write(f"{self.name} $ yard {shlex.join(words)}   [exit {done.returncode}]\n{out}\n")
        assert not check or done.returncode == 0, out
        return Done(done.returncode, out, 0.0)

    def on(self, node: str, line: str, check: bool = True) -> str:
        """Run a shell command as this person."""
        return self.yard("ssh", node, "--", line, check=check).out

    def submit(self, text: str, *words: str) -> Mapping[str, Any]:
        file = self.folder / "job.yaml"
        file.write_text(text)
        found: dict[str, Any] = json.loads(self.yard("submit", "--json", str(file), *words).out.splitlines()[-1])
        return found

    def start(self, text: str) -> Mapping[str, Any]:
        """Submit a job, and wait until it has written its result."""
        job = self.submit(text)
        result = f"{job['run_dir']}/result"
        wait_until("the job's result", 180, lambda: "private" in self.on(HEAD, f"cat {result}", check=False))
        return job


@dataclass(frozen=True)
class Team:
    ann: Person
    bob: Person
    boss: Person
    carl: Person
    """A person who is not in the stack file."""


def deploy(cluster: Project, *people: Person, limits: Mapping[str, Any] | None = None) -> Done:
    cluster.edit(lambda spec: spec.update(users=[person.entry for person in people], limits=dict(limits or {})))
    return cluster.stack("up")


@pytest.fixture(scope="module")
def team(cluster: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    """Two people and an admin. After the tests, the stack file has no users again."""
    folder = tmp_path_factory.mktemp("team")
    made = Team(*(Person(cluster, name, folder, admin=name == "boss") for name in ("ann", "bob", "boss", "carl")))
    people = (made.ann, made.bob, made.boss)
    for person in (*people, made.carl):
        person.prepare()
    try:
        deploy(cluster, *people)
        for person in people:
            person.receive()
        yield made
    finally:
        cluster.on(HEAD, "sudo scancel --user=ann; sudo scancel --user=bob; sudo scancel --user=boss", check=False)
        cluster.edit(lambda spec: [spec.pop(key) for key in ("users", "limits")])
        cluster.stack("up")
        cluster.wait_idle()


@pytest.fixture(scope="module")
def job(team: Team) -> Iterator[Mapping[str, Any]]:
    """A running job of ann."""
    found = team.ann.start(LONG)
    yield found
    team.ann.yard("cancel", str(found["id"]), check=False)


def node_of(cluster: Project, job: Mapping[str, Any]) -> str:
    return cluster.job_field(job["id"], "NodeList")


def as_person(name: str, line: str) -> str:
    """Return a command with which the admin runs a shell command as a person, without a login."""
    return f"sudo setpriv --reuid={name} --regid=people --init-groups env -C / bash -c {shlex.quote(line)}"


@pytest.mark.parametrize("node", [HEAD, FIRST, SECOND])
def test_each_person_has_the_same_account_on_every_node(team: Team, cluster: Project, node: str) -> None:
    line = "id -un; id -u; id -gn; stat -c '%a %U' /shared/people/$(id -un)/home; touch /shared/people/$(id -un)/home/x"
    for name, uid in (("ann", "23870"), ("bob", "28650")):
        assert cluster.on(node, as_person(name, line)).split()[:5] == [name, uid, "people", "700", name]
    assert team.ann.on(HEAD, "pwd").split()[-1] == "/shared/people/ann/home"


# This test needs both nodes, so it runs before the tests with ann's job.
def test_a_job_of_a_person_runs_on_two_nodes(team: Team) -> None:
    found = team.bob.submit(BOTH_NODES)
    assert "rank 0 of bob" in team.bob.yard("logs", "last", "-f", seconds=400).out
    assert "rank 1 of bob" in team.bob.yard("logs", str(found["id"]), "--rank", "1").out
    team.bob.yard("cp", f"{found['id']}:job.log", str(team.bob.folder / "job.log"))


def test_job_continues_after_a_killed_worker(team: Team, cluster: Project, tmp_path: Path) -> None:
    """With people, each job has its own folders on each node, which must exist again after the reboot."""
    job = cluster.submit(survivors.job_file(tmp_path, "survivor", nodes=2, run=survivors.SLEEPING))
    survivors.wait_saved(cluster, HEAD, job, ranks=2)
    victim = cluster.kill(SECOND)
    cluster.stack("refresh", timeout=300)
    cluster.stack("up", timeout=600)
    assert cluster.pid(SECOND) != victim
    output = survivors.finish(cluster, job, 600)
    assert {"rank 0 continues from step 3", "rank 1 continues from step 3"} <= set(output.splitlines())
    cluster.wait_idle()


def test_people_log_in_to_a_worker_only_where_their_job_runs(
    team: Team, job: Mapping[str, Any], cluster: Project
) -> None:
    node = node_of(cluster, job)
    (other,) = {FIRST, SECOND} - {node}
    said = team.ann.on(node, "echo job $SLURM_JOB_ID; cat /proc/self/cgroup")
    assert f"job {job['id']}" in said
    assert f"/job_{job['id']}/step_extern" in said
    for person, place in ((team.ann, other), (team.bob, node), (team.bob, other)):
        assert f"No job of {person.name} is running on {place}" in person.on(place, "echo inside", check=False)
    # The job and its sessions have their own temporary folders, in which other people cannot prepare files.
    assert "torchinductor_bob" in team.ann.on(node, "ls /tmp")
    assert "torchinductor_bob" not in cluster.on(node, "ls /tmp")
    # Slurm's own daemon is not needed for the logins as ops and as the job user.
    cluster.on(other, "sudo systemctl stop slurmd")
    try:
        said = team.boss.yard("ssh", other, "--admin", "--", "id -un; cat /proc/self/cgroup").out
        assert "ops" in said.split()
        assert "/job_" not in said
        assert cluster.yard("ssh", other, "--", "id -un").out.split()[-1] == "trainer"
        assert "inside" not in team.ann.on(other, "echo inside", check=False)
    finally:
        cluster.on(other, "sudo systemctl start slurmd")
    wait_until("the node", 60, lambda: cluster.states()[other] == "idle")


def test_normal_work_is_not_refused(team: Team, job: Mapping[str, Any], cluster: Project) -> None:
    ann, bob = team.ann, team.bob
    assert job["run_dir"].startswith("/shared/people/ann/jobs/long-")
    assert f"ann has {SECRET}" in ann.yard("logs", str(job["id"])).out
    assert "bob" in bob.yard("run", "--gpus", "0", "--time", "2m", "--", "id", "-un", seconds=300).out
    rows = [line.split()[:3] for line in bob.yard("ps").out.splitlines()]
    assert [str(job["id"]), "ann", "long"] in rows
    assert [row[1:] for row in rows].count(["bob", "both"]) == 1
    # The server in ann's job can be reached by ann, from all nodes.
    node = node_of(cluster, job)
    assert [connects(cluster, "ann", place, node) for place in (HEAD, FIRST, SECOND)] == ["open"] * 3
    accounts = cluster.on(HEAD, f"sacct -X -n -P -o user,account -j {job['id']}").split()
    assert accounts == ["ann|vision"]


def connects(cluster: Project, name: str, place: str, node: str) -> str:
    """Return "open", "refused" or "silent": the result of a person's connection to the port of ann's job."""
    line = f"timeout 5 bash -c ': <>/dev/tcp/{node}/{PORT}' 2>&1; echo code $?"
    said = cluster.on(place, as_person(name, line), check=False)
    return "refused" if "refused" in said else {"0": "open", "124": "silent"}.get(said.split()[-1], said)


def attempts(job: Mapping[str, Any], node: str) -> dict[str, str]:
    """Return bob's attempts at ann's job by name: shell commands that print "crossed" or the secret if they succeed."""
    number, folder = job["id"], job["run_dir"]
    ids, person = f"{folder.rpartition('/')[0]}/.ids", "/shared/people/ann"
    found = {
        "list the folder": f"ls {folder}",
        "read the log": f"cat {folder}/job.log",
        "read the secrets": f"cat {folder}/secrets.sh",
        "read through the link": f"cat {ids}/{number}/job.log",
        "write into the folder": f"touch {folder}/x",
        "remove the link": f"rm -f {ids}/{number}",
        "redirect the link": f"ln -sfn /tmp {ids}/{number}",
        "rename the person's folder": f"mv {person} /shared/people/x",
        "read the home": f"ls {person}/home",
        "add a key to the home": f"echo x >>{person}/home/.ssh/authorized_keys",
        "requeue": f"scontrol requeue {number}",
        "change the job": f"scontrol update jobid={number} timelimit=1",
        "run a step in the job": f"srun --jobid={number} --overlap id -un",
        "read the script from Slurm": f"scontrol write batch_script {number} - | grep SBATCH",
        "submit as another person": "sbatch --uid=ann --wrap id",
        "use another account": "srun --account=people --immediate=5 id -un",
        "use another QOS": "srun --qos=normal --immediate=5 id -un",
        "change the own limits": "sacctmgr -i modify qos person-bob set grptres=gres/gpu=-1",
        "become an admin in Slurm": "sacctmgr -i modify user bob set adminlevel=Admin",
        "drain a node": f"scontrol update nodename={node} state=drain reason=x",
        "use sudo": "sudo -n id",
        "log in as ann": f"ssh -o BatchMode=yes ann@{node} true",
        "log in to the node of ann's job": f"ssh -o BatchMode=yes {node} true",
        "change a shared environment": "mkdir /shared/envs/torch-000000000000",
    }
    lines = {name: f"{line} && echo crossed" for name, line in found.items()}
    lines["cancel"] = f"scancel {number}; sleep 1; squeue -h -j {number} -o %T | grep -q RUNNING || echo crossed"
    return lines


def test_attempts_across_the_border_are_refused(team: Team, job: Mapping[str, Any], cluster: Project) -> None:
    node = node_of(cluster, job)
    found = attempts(job, node)
    lines = [f"echo {shlex.quote(f'== {name}')}; ( {line} ) 2>&1" for name, line in found.items()]
    said = team.bob.on(HEAD, "cd; " + "; ".join([*lines, "true"]))
    results = dict(part.split("\n", 1) for part in said.split("== ")[1:])
    assert results.keys() == found.keys()
    assert {name: text for name, text in results.items() if {"crossed", SECRET} & set(text.split())} == {}
    for words in (("cancel", str(job["id"])), ("logs", str(job["id"])), ("cp", f"{job['id']}:result", "here")):
        assert "belongs to ann" in team.bob.yard(*words, check=False).out
    assert [connects(cluster, "bob", place, node) for place in (HEAD, FIRST, SECOND)] == ["silent"] * 3
    process = "p=$(pgrep -u ann -f http.server | head -n 1); cat /proc/$p/environ; kill $p && echo crossed; echo end"
    words_of_bob = cluster.on(node, as_person("bob", process) + " 2>&1").split()
    assert words_of_bob[-1] == "end"
    assert not {"crossed", SECRET} & set(words_of_bob)
    assert cluster.job_state(job) == "RUNNING"
    assert set(cluster.states().values()) <= {"idle", "mixed", "allocated"}


@pytest.mark.full
def test_a_group_reads_a_job_that_is_readable_for_it(team: Team) -> None:
    found = team.ann.start(READABLE)
    assert "for all" in team.bob.yard("logs", str(found["id"])).out
    wait_until(
        "the job's end", 120, lambda: "only be changed" in team.bob.yard("resume", str(found["id"]), check=False).out
    )
    assert "Permission denied" in team.bob.on(HEAD, f"cat {found['run_dir']}/job.sbatch 2>&1", check=False)


def test_an_admin_reads_and_cancels_jobs_of_others(team: Team, cluster: Project) -> None:
    found = team.bob.start(LONG)
    node = node_of(cluster, found)
    team.bob.on(node, "nohup setsid sleep 987 >/dev/null 2>&1 & echo $!")
    assert f"bob has {SECRET}" in team.boss.yard("logs", str(found["id"])).out
    team.boss.yard("cancel", str(found["id"]))
    wait_until("the end of the job", 120, lambda: "CANCELLED" in team.bob.yard("logs", "--json", "last").out)
    # The login was part of the job.
    wait_until("the end of the login", 60, lambda: not cluster.on(node, "pgrep -u bob || true").strip())
    assert "uid=0(root)" in team.boss.yard("ssh", "--admin", "--", "sudo -n id").out


def test_root_on_a_worker_does_not_become_root_on_the_head_through_an_admins_home(team: Team, cluster: Project) -> None:
    # Root on a worker can act as every person, so it can also change the files in an admin's home.
    home = "/shared/people/boss/home"
    cluster.on(FIRST, as_person("boss", f"sed -i '1i sudo -n id >~/crossed 2>&1' {home}/.bashrc"))
    team.boss.on(HEAD, "true")
    assert "a password is required" in cluster.on(HEAD, f"sudo cat {home}/crossed")
    key = f"-i {home}/.ssh/id_ed25519 -o BatchMode=yes -o StrictHostKeyChecking=accept-new"
    for account in ("ops", "root"):
        denied = cluster.on(FIRST, as_person("boss", f"ssh {key} {account}@{HEAD} id 2>&1"), check=False)
        assert "Permission denied" in denied


def test_a_person_is_added_while_jobs_run(team: Team, job: Mapping[str, Any], cluster: Project) -> None:
    before = {node: cluster.pid(node) for node in (HEAD, FIRST, SECOND)}
    starts = f"sudo grep -c ' start ' {job['run_dir']}/events"
    done = deploy(cluster, team.ann, team.bob, team.boss, team.carl)
    team.carl.receive()
    assert team.carl.on(HEAD, "id -un").split()[-1] == "carl"
    for node in (FIRST, SECOND):
        assert cluster.on(node, "id -u carl; cat /etc/trainyard/authorized_keys/carl").count("ssh-ed25519") == 1
    assert "carl" in team.carl.yard("run", "--gpus", "0", "--time", "2m", "--", "id", "-un", seconds=300).out
    assert {node: cluster.pid(node) for node in before} == before
    assert cluster.job_state(job) == "RUNNING"
    assert cluster.on(HEAD, starts).strip() == "1"
    cluster.stack("preview", "--expect-no-changes")
    sys.stdout.write(f"`pulumi up` with one more person took {done.seconds:.1f} s\n")


@pytest.mark.full
def test_a_removed_person_is_locked_and_keeps_the_files(team: Team, job: Mapping[str, Any], cluster: Project) -> None:
    found = team.bob.start(LONG)
    for node in (HEAD, node_of(cluster, found)):
        team.bob.on(node, "nohup sleep 1000 >/dev/null 2>&1 & echo $!")
    cluster.edit(lambda spec: spec.update(users=[person.entry for person in (team.ann, team.boss, team.carl)]))
    warning = "`pulumi up` locks the account, and ends all sessions and jobs of bob"
    assert warning in cluster.stack("preview").out
    assert warning in cluster.stack("up").out
    assert [cluster.on(node, "pgrep -u bob || true").strip() for node in (HEAD, FIRST, SECOND)] == ["", "", ""]
    wait_until("the end of the job", 60, lambda: not cluster.queued(str(found["id"])))
    assert "Permission denied" in team.bob.on(HEAD, "true", check=False)
    assert "bob people private" in cluster.on(
        HEAD, f"sudo sh -c 'stat -c \"%U %G\" {found['run_dir']}/result; cat {found['run_dir']}/result'"
    ).replace("\n", " ")
    assert cluster.job_state(job) == "RUNNING"
    # The same name gets the same account and the files back.
    deploy(cluster, team.ann, team.bob, team.boss)
    assert "private" in team.bob.on(HEAD, f"cat {found['run_dir']}/result")


LIMITS = {
    "people": {"bob": {"gpus": 1, "time": "1h"}},
    "accounts": {"vision": {"gpus": 3, "gpu_hours_per_month": 6}},
}
ONE_GPU = "name: one\nrun: sleep 600\ngpus_per_node: 1\nmemory_per_node: 100M\ntime: 40m\n"


@pytest.mark.full
def test_limits_refuse_and_hold_back_jobs(team: Team, cluster: Project) -> None:
    bob, ann = team.bob, team.ann
    deploy(cluster, ann, bob, team.boss, limits=LIMITS)
    file = bob.folder / "job.yaml"
    file.write_text(ONE_GPU)
    for words, who, limit in (
        (("--gpus-per-node", "2"), bob, "`limits.people.bob.gpus` permits 1 GPU at once, and jobs of bob are using 0"),
        (("--time", "2h"), bob, "`limits.people.bob.time` permits 60 min"),
        (("--nodes", "2", "--gpus-per-node", "2"), ann, "`limits.accounts.vision.gpus` permits 3 GPUs at once"),
        (("--time", "7h"), ann, "`limits.accounts.vision.gpu_hours_per_month` permits 6, of which"),
    ):
        said = who.yard("submit", str(file), *words, check=False).out
        assert f"because {limit}" in said
        assert "an operator can change the limit in the stack file. Fix: request less" in said
    first = bob.submit(ONE_GPU)
    wait_until("the first job", 120, lambda: cluster.job_state(first) == "RUNNING")
    said = bob.yard("submit", str(file)).out
    used = "`limits.people.bob.gpus` permits 1 GPU at once, and jobs of bob are using 1; an operator can change"
    assert f"is queued: {used}" in said
    assert used in reasons(bob)
    started = cluster.job_field(first["id"], "StartTime")
    deploy(cluster, ann, bob, team.boss)
    wait_until("the removal of the limit", 60, lambda: "limits." not in reasons(bob))
    assert cluster.job_field(first["id"], "StartTime") == started
    bob.yard("cancel", "--all")
    assert "GPU HOURS" in team.boss.yard("usage").out
    assert "the cost is unknown" in bob.yard("usage").out


def reasons(person: Person) -> str:
    return " ".join(row["why"] for row in json.loads(person.yard("ps", "--json").out.splitlines()[-1]))
