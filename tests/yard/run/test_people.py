"""yard as a person: the login, and jobs, files and environments of different people."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.yard.conftest import FakeStack, job_of, printed, refused, yard
from trainyard.errors import JobFileError, RemoteError, StackError
from trainyard.outputs import Cluster, dumped, read_outputs
from yard.environments import build
from yard.environments.definition import included
from yard.run import environments
from yard.run.queue import confirmed, parse_scontrol
from yard.run.submit import prepare
from yard.stack.load import KEY_VARIABLE, USER_VARIABLE, Stack, load_stack, save_for_jobs
from yard.stack.remote import Remote

USERS = {"ann": "user", "bob": "user", "root1": "admin"}
JOBS = """\
JobId=7 JobName=one UserId=ann(23870) JobState=RUNNING WorkDir=/shared/people/ann/jobs/one-20260102-030405-ab12
JobId=8 JobName=two UserId=bob(28650) JobState=RUNNING WorkDir=/shared/people/bob/jobs/two-20260102-030405-ab12
JobId=9 JobName=old UserId=trainer(2000) JobState=RUNNING WorkDir=/shared/jobs/old-20260102-030405-ab12
"""
As = Callable[[str], Stack]


@pytest.fixture
def people(local: Cluster) -> Cluster:
    return replace(local, users=USERS)


@pytest.fixture
def as_person(stack: FakeStack, people: Cluster, monkeypatch: pytest.MonkeyPatch) -> As:
    """A function that makes yard use an outputs file without keys, as this person."""
    saved = stack.root / "team.json"
    stack.deploy(people)
    save_for_jobs(load_stack("local"), saved)
    monkeypatch.setenv("TRAINYARD_OUTPUTS", str(saved))

    def use(name: str) -> Stack:
        monkeypatch.setenv(USER_VARIABLE, name)
        return load_stack("local", file=saved)

    return use


@pytest.fixture
def ssh(stack: FakeStack) -> Any:
    """A head that lists JOBS and lets bob's folder be read only in tests that change `readable`."""
    (stack.root / "jobs.txt").write_text(JOBS)
    readable = stack.root / "readable"
    return stack.program(
        "ssh",
        f"""case "${{!#}}" in
  *"squeue -h -t all -j 10 "*) echo ann ;;
  *"squeue -h -a -t all "*) sed -n 's/^JobId=\\([0-9]*\\) .* UserId=\\([a-z0-9]*\\).*/\\1|\\2/p' \\
      {stack.root}/jobs.txt ;;
  *"squeue -h -t all -j "*)
    n=${{!#}}; n=${{n#*-j }}; sed -n "s/^JobId=${{n%% *}} .* UserId=\\([a-z0-9]*\\).*/\\1/p" {stack.root}/jobs.txt ;;
  *"scontrol -o show job "[0-9]*) n=${{!#}}; n=${{n#*show job }}; grep "JobId=${{n%% *}} " {stack.root}/jobs.txt ;;
  *"scontrol -o show jobs"*) cat {stack.root}/jobs.txt ;;
  *"test -r "*) [[ ! -e {readable} ]] || echo yes ;;
  *) echo done ;;
esac""",
    )


def options(config: Path, host: str) -> dict[str, list[str]]:
    """Return the options that `ssh -G` prints for a host."""
    said = subprocess.run(["ssh", "-F", str(config), "-G", host], capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        name, _, value = line.partition(" ")
        found.setdefault(name, []).append(value)
    return found


def test_a_persons_file_contains_no_key(stack: FakeStack, people: Cluster) -> None:
    stack.deploy(people)
    for user in (None, "ann"):
        save_for_jobs(load_stack("local"), stack.root / "file.json", user)
        saved = json.loads((stack.root / "file.json").read_text())
        assert saved == {"cluster": dumped(people), **({"user": "ann"} if user else {})}
    with pytest.raises(StackError, match="has no user 'zoe'; its users: ann, bob, root1"):
        save_for_jobs(load_stack("local"), stack.root / "file.json", "zoe")


def test_the_login_is_the_variable_the_file_or_the_local_name(
    stack: FakeStack, people: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.deploy(people)
    everybody, own = stack.root / "everybody.json", stack.root / "own.json"
    save_for_jobs(load_stack("local"), everybody)
    save_for_jobs(load_stack("local"), own, "ann")
    monkeypatch.setattr("getpass.getuser", lambda: "bob")
    assert load_stack("local").user == "trainer", "an operator uses the job user's key"
    assert load_stack("local", file=own).user == "ann"
    assert load_stack("local", file=everybody).user == "bob"
    monkeypatch.setenv(USER_VARIABLE, "root1")
    for file in (own, everybody, None):
        assert load_stack("local", file=file).user == "root1"
        assert load_stack("local", file=file).user == "root1", "from the cache"
    monkeypatch.delenv(USER_VARIABLE)
    assert load_stack("local", file=own).user == "ann"
    monkeypatch.setattr("getpass.getuser", lambda: "zoe")
    with pytest.raises(StackError, match=r"has no user 'zoe'.* Fix: set TRAINYARD_USER to your name on the cluster"):
        load_stack("local", file=everybody, refresh=True)


def test_ssh_uses_a_persons_own_keys(as_person: As) -> None:
    loaded = as_person("ann")
    assert not (loaded.folder / "id_ed25519").exists()
    for host in ("yard-head", "yard-gpu-0", "yard-gpu-1"):
        found = options(loaded.ssh_config, host)
        assert (found["user"], found["identitiesonly"]) == (["ann"], ["no"])
        assert "~/.ssh/id_ed25519" in found["identityfile"]
    with pytest.raises(RemoteError, match="contains no admin key"):
        Remote(loaded).host(None, admin=True)


def test_a_person_can_choose_a_key(as_person: As, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "my key"
    monkeypatch.setenv(KEY_VARIABLE, str(key))
    with pytest.raises(StackError, match=r"TRAINYARD_KEY names .*, which is not a file\. Fix: set it to your private"):
        as_person("root1")
    key.touch()
    for host in ("yard-head", "yard-gpu-1", "yard-head-admin"):
        found = options(as_person("root1").ssh_config, host)
        assert (found["identitiesonly"], found["identityfile"]) == (["yes"], [str(key)])
    monkeypatch.delenv(KEY_VARIABLE)
    found = options(as_person("root1").ssh_config, "yard-head")
    assert found["identitiesonly"] == ["no"], "the cached files must not be used for another key"


def test_a_worker_can_explain_a_refused_login_to_a_person(as_person: As, monkeypatch: pytest.MonkeyPatch) -> None:
    as_person("ann")
    assert json.loads(printed("ssh", "--json", "yard-gpu-0"))["argv"][-3:] == ["-o", "LogLevel=INFO", "yard-gpu-0"]
    monkeypatch.delenv(USER_VARIABLE)
    monkeypatch.delenv("TRAINYARD_OUTPUTS")
    assert "LogLevel=INFO" not in json.loads(printed("ssh", "--json", "yard-gpu-0"))["argv"]


def test_an_admin_logs_in_as_ops_with_the_own_keys(as_person: As) -> None:
    loaded = as_person("root1")
    assert Remote(loaded).host(None, admin=True) == "yard-head-admin"
    assert options(loaded.ssh_config, "yard-head-admin")["user"] == ["ops"]


def test_ps_shows_who_submitted_a_job(as_person: As, ssh: Any) -> None:
    as_person("ann")
    lines = printed("ps").splitlines()
    assert lines[0].split()[:3] == ["JOB", "USER", "NAME"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["9", "trainer", "old"],
        ["8", "bob", "two"],
        ["7", "ann", "one"],
    ]


@pytest.mark.parametrize(
    "words",
    [
        *(("cancel", *jobs) for jobs in ("8", "79")),
        *(("logs", job) for job in "89"),
        ("wait", "8"),
        ("code", "8"),
        ("notebook", "8"),
    ],
)
def test_jobs_of_others_are_refused(words: tuple[str, ...], as_person: As, ssh: Any) -> None:
    as_person("ann")
    said = refused(*words)
    assert f"job {words[-1]} belongs to {'bob' if words[-1] == '8' else 'trainer'} and " in said
    assert "or an admin (root1)" in said
    assert not [call for call in ssh.calls if "scancel" in call or "follow" in call]


def test_a_job_that_is_readable_for_a_group_is_read(as_person: As, ssh: Any, stack: FakeStack) -> None:
    as_person("ann")
    (stack.root / "readable").touch()
    assert printed("logs", "8") == "done\n"
    assert [call for call in ssh.calls if " follow /shared/people/bob/jobs 8 0 0" in call]
    assert "belongs to bob" in refused("cancel", "8")


def test_an_admin_acts_as_the_owner(as_person: As, ssh: Any) -> None:
    as_person("root1")
    assert printed("logs", "8") == "done\n"
    (read,) = [call for call in ssh.calls if "follow" in call]
    assert "cd / && exec sudo -n -H -u bob -- bash -c " in read
    assert yard("cancel", "7", "8")[0] == 0
    assert ssh.calls[-1].endswith("scancel 7 8")


_OWN = "GroupId=people(2001) JobState=FAILED WorkDir=/shared/people/ann/jobs/x"


@pytest.mark.parametrize(
    "name",
    [
        "x UserId=bob",
        "x UserId=root JobState=FAILED WorkDir=/shared/people/ann/evil",
        "x UserId=root(0) GroupId=root(0) JobState=FAILED",
        "x\nJobId=10 JobName=y UserId=bob(28650) JobState=FAILED WorkDir=/shared/people/bob/jobs/x",
        "x UserId=ann`sudo${IFS}/shared/people/ann/evil`",
    ],
)
@pytest.mark.parametrize("person", ["root1", "bob"])
def test_a_job_name_does_not_change_the_owner(
    name: str, person: str, as_person: As, ssh: Any, stack: FakeStack
) -> None:
    (stack.root / "jobs.txt").write_text(f"JobId=10 JobName={name} UserId=ann(23870) {_OWN}\n")
    as_person(person)
    refused("resume", "10")
    assert not [call for call in ssh.calls if "sudo" in call or "submit.sh" in call]
    assert yard("ps")[0] == 0


@pytest.mark.parametrize("forged", ["UserId=root1", "UserId=ann", "UserId=bob"])
def test_a_job_name_with_line_breaks_does_not_describe_another_job(forged: str, as_person: As, ssh: Any) -> None:
    jobs = parse_scontrol(
        f"{JOBS}JobId=10 JobName=x\nJobId=8 JobName=z {forged}(1) {_OWN}\nJobId=99 JobName=z {forged}(1) {_OWN}\n"
    )
    assert [job.id for job in jobs] == [7, 8, 9, 8, 99]
    assert [job.id for job in confirmed(jobs, "7|ann\n8|bob\n9|trainer\n10|ann\n")] == [7, 9]


def test_an_admin_acts_only_as_users_of_the_cluster(as_person: As) -> None:
    remote = Remote(as_person("root1"))
    for name in ("root", "ann;id", ""):
        with pytest.raises(RemoteError, match="not a user of this cluster"):
            remote.acting_for(name)


def test_a_working_directory_does_not_lead_into_another_folder() -> None:
    record = "JobId=7 JobName=x UserId=ann(1) JobState=FAILED WorkDir=/shared/people/ann/jobs/../../bob/evil"
    assert parse_scontrol(record)[0].run_dir == "/shared/people/bob/evil"
    for folder in ("..", "--goto"):
        assert parse_scontrol(f"JobId=7 JobName=x UserId=ann(1) JobState=FAILED WorkDir={folder}")[0].run_dir == ""


def test_files_of_a_job_are_copied_by_its_owner_or_an_admin(as_person: As, ssh: Any, stack: FakeStack) -> None:
    rsync = stack.program("rsync", "exit 0")
    as_person("ann")
    assert "belongs to bob and is not readable for you" in refused("cp", "8:job.log", str(stack.root))
    assert rsync.calls == []
    as_person("root1")
    refused("cp", str(stack.root / "team.json"), "8:")  # the fake head prints no path
    assert "exec sudo -n -H -u bob -- bash -c " in ssh.calls[-1]


def test_own_jobs_are_cancelled_and_found(as_person: As, ssh: Any) -> None:
    as_person("ann")
    assert yard("cancel", "--all")[0] == 0
    assert ssh.calls[-1].endswith("scancel 7")
    printed("logs", "last")
    assert [call for call in ssh.calls if " follow /shared/people/ann/jobs 7 0 0" in call]


def test_jobs_and_files_are_in_the_persons_folder(as_person: As, ssh: Any, tmp_path: Path) -> None:
    loaded = as_person("ann")
    assert (loaded.jobs_path, loaded.files_path) == ("/shared/people/ann/jobs", "/shared/people/ann/home")
    refused("submit", "hello")  # the fake head prints no job number
    assert "cd /shared/people/ann/jobs " in ssh.calls[-1]


@pytest.mark.parametrize(("group", "code"), [("vision", 0), ("nlp", 1)])
def test_a_group_can_read_the_folder_of_a_job(
    group: str, code: int, as_person: As, stack: FakeStack, tmp_path: Path
) -> None:
    as_person("ann")
    (tmp_path / "job.yaml").write_text(f"name: a\nrun: 'true'\nreadable_by: {group}\naccount: vision\n")
    for name in ("chgrp", "chmod"):
        stack.program(name, f"echo {name} $* >>{tmp_path}/changed")
    stack.program("id", "echo people vision")
    stack.program("sbatch", "echo 7")
    stack.program("ssh", f'line=${{!#}}; exec bash -c "${{line//\\/shared/{tmp_path}/shared}}"')
    ended, _, err = yard("submit", str(tmp_path / "job.yaml"))
    assert ended == code, err
    if code:
        assert "nlp is not one of your groups" in err
        assert not (tmp_path / "shared").exists()
        return
    folder = next((tmp_path / "shared/people/ann/jobs").glob("a-*"))
    assert (tmp_path / "changed").read_text() == f"chgrp vision {folder}\nchmod 0750 {folder}\n"
    assert "#SBATCH --account=vision\n" in (folder / "job.sbatch").read_text()
    assert [oct(path.stat().st_mode & 0o777) for path in (folder, folder / "job.sbatch")] == ["0o700", "0o600"]


def test_a_shared_account_has_no_groups(local: Cluster, tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match="readable_by: all users of this cluster share an account"):
        prepare(job_of(tmp_path, "name: a\nrun: 'true'\nreadable_by: people\n"), local)


TORCH = included("torch")


@pytest.mark.parametrize(
    ("user", "looked", "built"),
    [
        ("ann", "/shared/envs /shared/people/ann/envs", "mkdir -p /shared/people/ann/envs"),
        ("root1", "/shared/envs", "sudo -n -H -u trainer"),
    ],
)
def test_environments_are_shared_or_belong_to_a_person(  # noqa: PLR0913, PLR0917
    user: str, looked: str, built: str, as_person: As, stack: FakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(as_person(user))
    ssh = stack.program("ssh", 'case "${!#}" in *sha256sum*) echo absent x ;; *) cat >/dev/null; echo /made ;; esac')
    assert environments.ensure(remote, TORCH, (), "test") == "/made"
    assert f"for e in {looked}; do" in ssh.calls[0]
    assert built in ssh.calls[1]
    assert ("mkdir -p /shared/envs" in ssh.calls[1]) is (user == "root1")


def test_the_shared_environment_comes_first(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in ("shared", "own")]
    line = environments._find_line(replace(TORCH, python=""), folders)

    def found() -> str:
        return subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout.strip()

    absent = Path(found().removeprefix("absent "))
    for folder in reversed(folders):
        (Path(folder) / absent.name).mkdir(parents=True)
        (Path(folder) / absent.name / build.MARKER).touch()
        assert found() == f"ready {folder}/{absent.name}"


def test_an_environment_in_use_by_a_person_stays(as_person: As, ssh: Any, stack: FakeStack) -> None:
    as_person("root1")
    env = {"name": "torch", "python": "3.13", "built": 0, "bytes": 1, "seconds": 1, "base": None}
    text = shlex.quote(json.dumps(env))
    stack.program(
        "ssh",
        f"""case "${{!#}}" in
  *"scontrol -o show jobs"*) cat {stack.root}/jobs.txt ;;
  *"squeue -h -a -t all "*) sed -n 's/^JobId=\\([0-9]*\\) .* UserId=\\([a-z0-9]*\\).*/\\1|\\2/p' \\
      {stack.root}/jobs.txt ;;
  *"cd /shared/envs "*) printf 'torch-1\\t%s\\n' {text} ;;
  *"sudo -n -u bob -- "*) echo /shared/people/bob/jobs/two-20260102-030405-ab12 $'/shared/envs/torch-1\nword' ;;
esac""",
    )
    assert "job 8 uses environment torch-1" in refused("env", "rm", "torch")


def test_outputs_without_people_are_unchanged(local: Cluster, people: Cluster) -> None:
    assert "users" not in dumped(local)
    assert read_outputs(dumped(people)).users == USERS
    assert (local.jobs_of("trainer"), people.jobs_of("trainer")) == ("/shared/jobs", "/shared/jobs")
