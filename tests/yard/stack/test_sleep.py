"""`yard sleep` and `yard wake` with a fake ssh, and fake command-line tools of the clouds."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.yard.conftest import FakeStack, printed, refused
from trainyard.faults import SLEEP_REQUEST, SLEEPING
from trainyard.outputs import LOCAL_WAKE, Cluster
from yard.stack import sleep as sleeping

AZURE = (
    "az",
    "vm",
    "start",
    "--ids",
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/h",
)
RUN = subprocess.run
JOBS, LOGINS = "7|ann\n", "sshd-session: bob@pts/0\nsshd: ops@notty\n/usr/bin/vi sshd: eve@pts/1\n"


class Head:
    """A head that is on while the file `on` exists. `jobs` and `logins` are what squeue and ps print."""

    def __init__(self, stack: FakeStack, local: Cluster, wake: tuple[str, ...]) -> None:
        self.root = stack.root
        stack.deploy(replace(local, head=replace(local.head, wake=wake)))
        self.request, self.on = self.root / "sleep", self.root / "on"
        self.set()
        self.on.touch()
        stack.program(
            "ssh",
            f'cd "{self.root}"; [[ -e on ]] || {{ echo "Connection refused" >&2; exit 255; }}\n'
            "case ${*: -1} in\n"
            "*squeue*) cat jobs; echo ===; cat logins ;;\n"
            '*"sh -c"*) echo "${*: -1}" >>calls; echo \'{"at": 1}\' >sleep ;;\n'
            "*cat*) if [[ -e answer ]]; then cat answer; else cat sleep; rm on; fi ;;\n"
            "esac",
        )

    def set(self, jobs: str = "", logins: str = "", answer: str | None = None) -> None:
        (self.root / "jobs").write_text(jobs)
        (self.root / "logins").write_text(logins)
        (self.root / "answer").unlink(missing_ok=True)
        if answer is not None:
            (self.root / "answer").write_text(answer)

    @property
    def calls(self) -> str:
        calls = self.root / "calls"
        return calls.read_text() if calls.exists() else ""


@pytest.fixture
def head(stack: FakeStack, local: Cluster, monkeypatch: pytest.MonkeyPatch) -> Head:
    monkeypatch.setattr(sleeping, "_POLL_SECONDS", 0)
    made = Head(stack, local, AZURE)
    stack.program("az", f'echo "$*" >>"{stack.root}/az"; touch "{stack.root}/on"')
    return made


def test_a_cluster_without_idle_never_sleeps(stack: FakeStack) -> None:
    assert stack.root.exists()
    for command in ("sleep", "wake"):
        assert "add `idle: {minutes: 60}` to the stack file" in refused(command)


def test_a_cluster_sleeps_and_is_woken(head: Head) -> None:
    found = json.loads(printed("sleep", "--json"))
    assert found["asleep"] is True
    assert "+ 0" in head.calls
    assert "wall" not in head.calls
    assert "run `yard wake`" in refused("ps")
    assert json.loads(printed("wake", "--json"))["started"] is True
    assert (head.root / "az").read_text().split() == list(AZURE[1:])
    assert json.loads(printed("wake", "--json"))["started"] is False


def test_running_jobs_and_logins_are_listed_in_one_message(head: Head) -> None:
    head.set(JOBS, LOGINS)
    text = refused("sleep")
    assert "these jobs are running: 7 (ann)" in text
    assert "these users are logged in: bob." in text
    assert head.calls == ""


def test_people_are_warned_before_the_cluster_sleeps(head: Head) -> None:
    head.set(logins=LOGINS)
    assert "sleeps" in printed("sleep", "--force")
    assert "wall" in head.calls
    assert f"+ {sleeping.WARNING_SECONDS}" in head.calls


def test_the_reason_of_the_head_is_shown(head: Head) -> None:
    head.set(answer='{"refused": "a job is running"}')
    assert "does not stop: a job is running" in refused("sleep")


def test_a_head_that_shuts_down_has_unmounted_its_disk(head: Head, stack: FakeStack) -> None:
    """The file with the request is missing for some seconds, and then the head does not answer."""
    stack.program(
        "ssh",
        f'cd "{head.root}"; case ${{*: -1}} in *cat*) ;; *) exit 0 ;; esac; echo >>asked\n'
        "case $(wc -l <asked) in 1) echo '{\"at\": 1}' ;; 2 | 3) ;; *) echo 'Connection refused' >&2; exit 255 ;; esac",
    )
    assert json.loads(printed("sleep", "--json"))["asleep"] is True


def test_a_withdrawn_request_ends_the_command(head: Head, stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sleeping, "_SHUTDOWN_SECONDS", 0)
    stack.program("ssh", "exit 0")
    assert "the request was withdrawn" in refused("sleep")


@pytest.mark.parametrize("command", ["wake", "sleep"])
def test_a_head_that_refuses_the_login_is_not_asleep(head: Head, stack: FakeStack, command: str) -> None:
    stack.program("ssh", "echo 'Permission denied (publickey)' >&2; exit 255")
    text = refused(command)
    assert "Permission denied" in text
    assert "starting" not in text
    assert not (head.root / "az").exists()


def test_a_cluster_that_stops_is_started_again(head: Head, stack: FakeStack) -> None:
    """The head still answers while its workers stop, and then stops too."""
    stack.program(
        "ssh",
        f'cd "{head.root}"; case ${{*: -1}} in *grep*) ;; *) exit 0 ;; esac; echo >>asked\n'
        "case $(wc -l <asked) in\n"
        f"1 | 2 | 5) echo '{SLEEPING}' ;;\n"
        "3 | 4) echo 'Connection refused' >&2; exit 255 ;;\n"
        "esac",
    )
    assert json.loads(printed("wake", "--json"))["started"] is True
    assert (head.root / "az").exists()
    assert (head.root / "asked").read_text().count("\n") == 6


def test_submit_wakes_the_cluster(head: Head) -> None:
    head.on.unlink()
    assert "Its head is starting" in refused("submit", "hello")
    assert (head.root / "az").exists()


@pytest.mark.parametrize(
    ("script", "fix"),
    [("echo 'Please run az login' >&2; exit 1", "Please run az login. Fix: log in to the cloud"), (None, "is missing")],
)
def test_a_head_that_cannot_be_started(
    script: str | None, fix: str, head: Head, stack: FakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    head.on.unlink()
    if script is None:
        monkeypatch.setattr("subprocess.run", _without_az)
    else:
        stack.program("az", script)
    text = refused("wake")
    assert fix in text
    assert " ".join(AZURE) in text


def _without_az(words: list[str], **options: Any) -> Any:
    if words[0] == "az":
        raise FileNotFoundError(words[0])
    return RUN(words, **options)


def test_a_local_machine_that_does_not_exist_is_named(stack: FakeStack, local: Cluster) -> None:
    run = stack.root / ".trainyard" / "run" / "local"
    Head(stack, local, (LOCAL_WAKE, str(run))).on.unlink()
    assert f"{local.head.name} cannot be started on this computer" in refused("wake")


def test_only_machines_of_this_project_are_started(stack: FakeStack, local: Cluster, tmp_path: Path) -> None:
    Head(stack, local, (LOCAL_WAKE, str(tmp_path / "run"))).on.unlink()
    assert "Fix: run the command in the project's folder" in refused("wake")


@pytest.mark.parametrize("target", ["victim", "folder"])
def test_the_request_follows_no_link(tmp_path: Path, local: Cluster, target: str) -> None:
    """trainyard-repair is confined, but it could create links in its folder."""
    (tmp_path / "repair").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "victim").write_text("unchanged")
    request = tmp_path / SLEEP_REQUEST
    link = request if target == "folder" else request.with_name(f"{request.name}.new")
    link.symlink_to(tmp_path / target)
    lines: list[str] = []
    cluster = replace(local, state_dir=str(tmp_path))
    stack = SimpleNamespace(stack=SimpleNamespace(cluster=cluster), run=lambda line, **_: lines.append(line))
    sleeping._request(cast("Any", stack), 0)
    RUN(["bash", "-euc", 'sudo() { shift; "$@"; }; eval "$0"', *lines], check=True)
    assert (tmp_path / "victim").read_text() == "unchanged"
    assert list((tmp_path / "folder").iterdir()) == []
    assert "at" in json.loads(request.read_text())
