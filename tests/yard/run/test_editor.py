"""`yard code`: the SSH host entry of a job, read by the real ssh, with a fake head and a fake VS Code."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.yard.conftest import HOST_KEY, FakeStack, printed, refused
from trainyard.outputs import Cluster
from yard.run import query

_SSH = """[[ $1 != -G ]] || {{ cat "{root}/resolved"; exit; }}
case "$*" in
  *-job-7*) exit "$(<"{root}/code")" ;;
  *ssh-keygen*) echo "{key}" ;;
  *"show job"*) echo "JobId=7 UserId=t(1) JobState=$(<"{root}/state") NodeList=yard-gpu-1 WorkDir=/shared/jobs/a" ;;
esac"""


@pytest.fixture
def head(stack: FakeStack) -> Path:
    (stack.root / "head").mkdir()
    for name, text in {"state": "RUNNING", "code": "0", "resolved": "user me\n"}.items():
        (stack.root / "head" / name).write_text(text)
    stack.program("ssh", _SSH.format(root=stack.root / "head", key=HOST_KEY))
    return stack.folder


def test_a_host_entry_leads_into_the_job(head: Path, stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.loads(printed("code", "7", "/shared/my work", "--json"))
    assert answer["command"] == ["code", "--remote", "ssh-remote+yard-job-7", "/shared/my work"]
    assert (head / "job-7.known_hosts").read_text() == f"yard-job-7 {HOST_KEY}\n"
    command = ["/usr/bin/ssh", "-G", "-F", answer["config"], "yard-job-7"]
    shown = dict(line.split(" ", 1) for line in subprocess.check_output(command, text=True).splitlines())
    assert shown["stricthostkeychecking"] == "true"
    assert shown["userknownhostsfile"] == str(head / "job-7.known_hosts")
    assert f"ssh -F {head}/config yard-head 'exec srun --jobid=7 --overlap " in shown["proxycommand"]
    assert "AuthorizedKeysFile=/etc/trainyard/authorized_keys/%%u" in shown["proxycommand"]


def test_vs_code_starts_when_ssh_knows_the_entry(head: Path, stack: FakeStack) -> None:
    out = printed("code", "7")
    assert f'add this line to the beginning of ~/.ssh/config: Include "{head}/job-*.conf"' in out
    code = stack.program("code", "exit 0")
    (stack.root / "head" / "resolved").write_text(f"userknownhostsfile {head}/job-7.known_hosts\n")
    assert "VS Code opens /shared/jobs/a on yard-job-7" in printed("code", "7")
    assert code.calls == ["--remote ssh-remote+yard-job-7 /shared/jobs/a"]


def test_a_job_that_cannot_be_entered_is_refused(head: Path, stack: FakeStack, local: Cluster) -> None:
    (stack.root / "head" / "code").write_text("255")
    assert "cannot connect to job 7" in refused("code", "7")
    (stack.root / "head" / "state").write_text("PENDING")
    assert "job 7 is PENDING, not running. Fix: start a job first" in refused("code", "7")
    stack.deploy(replace(local, scheduler="none"))
    row = dict.fromkeys(query.FIELDS, "") | {"id": 7, "state": "RUNNING", "elapsed_s": 1, "node_list": "yard-gpu-1"}
    stack.program("ssh", f"echo {shlex.quote(json.dumps([row]))}")
    assert f'`Include "{head}/config"` to ~/.ssh/config, and connect the editor to the node yard-gpu-1' in refused(
        "code", "7"
    )
