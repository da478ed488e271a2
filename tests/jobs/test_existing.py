"""`yard hosts`: keys are shown and never stored, and a stack lets go of one host and of no other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from jobs.errors import RemoteError, StackError
from jobs.forget import forget_host
from jobs.scan import scan
from tests.jobs.conftest import MakeProgram


@pytest.fixture
def key(tmp_path: Path) -> str:
    """A real host key."""
    file = tmp_path / "host"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return " ".join(file.with_suffix(".pub").read_text().split()[:2])


def test_the_best_key_is_shown_with_its_fingerprint(program: MakeProgram, key: str, tmp_path: Path) -> None:
    asked = program("ssh-keyscan", f"echo '# 203.0.113.10:2222 SSH-2.0'; echo 'x ssh-rsa AAAA'; echo 'x {key}'")
    shown = scan("203.0.113.10:2222")
    [call] = asked.calls
    assert call.endswith("-p 2222 203.0.113.10")
    assert shown.host_key == key
    printed = subprocess.run(["ssh-keygen", "-lf", f"{tmp_path}/host.pub"], check=True, capture_output=True, text=True)
    assert shown.fingerprint == printed.stdout.split()[1]
    assert shown.file == "/etc/ssh/ssh_host_ed25519_key.pub"


def test_a_host_behind_another_is_asked_from_there(program: MakeProgram, key: str) -> None:
    ssh = program("ssh", f"echo 'x {key}'")
    assert scan("10.0.0.7", through="ubuntu@203.0.113.10").host_key == key
    assert ssh.calls[0].startswith("-o BatchMode=yes ubuntu@203.0.113.10 ssh-keyscan")


def test_a_host_that_is_silent_and_a_word_that_is_no_address(program: MakeProgram) -> None:
    program("ssh-keyscan", "exit 1")
    with pytest.raises(RemoteError, match=r"no sshd answers at 203\.0\.113\.10\. Fix: "):
        scan("203.0.113.10")
    with pytest.raises(RemoteError, match="is no address"):
        scan("-oProxyCommand=x")


def urn(name: str) -> str:
    return f"urn:pulumi:s::trainyard::a$command:remote:Command::{name}"


@pytest.fixture
def pulumi(program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A pulumi with two hosts in its state, one of whose names ends as the other's."""
    # A checkout that was set up has a pulumi of its own, which comes before the one on PATH.
    monkeypatch.setattr("jobs.stack.CHECKOUT", tmp_path)
    names = ["c-hosts-node2-survey", "c-hosts-my-node2-lease", "c-hosts-node2-lease", "c-hosts-node2-files"]
    state = json.dumps({"deployment": {"resources": [{"urn": urn(name)} for name in names]}})
    made = program("pulumi", f"[[ $1 != stack ]] || echo '{state}'")
    return [str(made.folder)]


def test_only_the_lease_of_that_host_is_forgotten(pulumi: list[str]) -> None:
    forget_host("s", "node2")
    calls = (Path(pulumi[0]) / "pulumi.calls").read_text().splitlines()
    assert calls == ["stack export -s s", f"state delete {urn('c-hosts-node2-lease')} -s s --yes --non-interactive"]


def test_a_host_that_the_stack_does_not_hold_is_named_with_those_it_does(pulumi: list[str]) -> None:
    with pytest.raises(StackError, match=r"holds no host node3; it holds c-hosts-my-node2, c-hosts-node2"):
        forget_host("s", "node3")


def test_what_pulumi_refuses_is_told(program: MakeProgram) -> None:
    state = json.dumps({"deployment": {"resources": [{"urn": urn("c-hosts-a-lease")}]}})
    program("pulumi", f"[[ $1 != stack ]] || {{ echo '{state}'; exit 0; }}; echo 'others depend on it' >&2; exit 1")
    with pytest.raises(StackError, match="others depend on it"):
        forget_host("s", "a")
