"""`yard hosts scan` and `yard hosts forget`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.yard.conftest import MakeProgram, Program
from trainyard.errors import RemoteError, StackError
from yard.stack.hosts import forget_host, scan


@pytest.fixture
def key(tmp_path: Path) -> str:
    file = tmp_path / "host"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(file)], check=True)
    return " ".join(file.with_suffix(".pub").read_text().split()[:2])


def test_scan_returns_the_preferred_key_and_fingerprint(program: MakeProgram, key: str, tmp_path: Path) -> None:
    asked = program("ssh-keyscan", f"echo '# 203.0.113.10:2222 SSH-2.0'; echo 'x ssh-rsa AAAA'; echo 'x {key}'")
    shown = scan("203.0.113.10:2222")
    [call] = asked.calls
    assert call.endswith("-p 2222 203.0.113.10")
    assert shown.host_key == key
    printed = subprocess.run(["ssh-keygen", "-lf", f"{tmp_path}/host.pub"], check=True, capture_output=True, text=True)
    assert shown.fingerprint == printed.stdout.split()[1]
    assert shown.file == "/etc/ssh/ssh_host_ed25519_key.pub"


def test_scan_through_another_host_runs_there(program: MakeProgram, key: str) -> None:
    ssh = program("ssh", f"echo 'x {key}'")
    assert scan("10.0.0.7", through="ubuntu@203.0.113.10").host_key == key
    assert ssh.calls[0].startswith("-o BatchMode=yes ubuntu@203.0.113.10 ssh-keyscan")


def test_scan_reports_a_silent_host_and_a_bad_address(program: MakeProgram) -> None:
    program("ssh-keyscan", "exit 1")
    with pytest.raises(RemoteError, match=r"no sshd answers at 203\.0\.113\.10\. Fix: "):
        scan("203.0.113.10")
    with pytest.raises(RemoteError, match="is not an address"):
        scan("-oProxyCommand=x")


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'ubuntu@203.0.113.10: Permission denied (publickey).' >&2; exit 255", "Permission denied"),
        ("echo 'bash: ssh-keyscan: command not found' >&2; exit 127", "ssh-keyscan: command not found"),
    ],
)
def test_scan_reports_that_the_other_host_cannot_scan(program: MakeProgram, script: str, reason: str) -> None:
    program("ssh", script)
    with pytest.raises(RemoteError, match=rf"^cannot scan 10\.0\.0\.7 from ubuntu@203\.0\.113\.10: .*{reason}"):
        scan("10.0.0.7", through="ubuntu@203.0.113.10")


def urn(name: str) -> str:
    return f"urn:pulumi:s::trainyard::a$command:remote:Command::{name}"


def command(name: str) -> dict[str, str]:
    parent = "urn:pulumi:s::trainyard::a::c-hosts"
    return {"urn": urn(name), "type": "command:remote:Command", "parent": parent}


@pytest.fixture
def pulumi(program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A fake pulumi with two hosts in its state. One host name is a suffix of the other."""
    # After set-up, a checkout contains a pulumi that takes precedence over the one on PATH.
    monkeypatch.setattr("trainyard.checkout.ROOT", tmp_path)
    names = ["c-hosts-node2-survey", "c-hosts-my-node2-lease", "c-hosts-node2-lease", "c-hosts-node2-files"]
    state = json.dumps({"deployment": {"resources": [command(name) for name in names]}})
    fails = "[[ $3 != *my-node2* ]] || { echo 'others depend on it' >&2; exit 1; }"
    return program("pulumi", f"if [[ $1 == stack ]]; then echo '{state}'; else {fails}; fi")


def test_only_the_lease_of_that_host_is_forgotten(pulumi: Program) -> None:
    forget_host("s", "node2")
    lease = urn("c-hosts-node2-lease")
    assert pulumi.calls == ["stack export -s s", f"state delete {lease} -s s --yes --non-interactive"]
    with pytest.raises(StackError, match=r"has no host node3; its hosts: my-node2, node2$"):
        forget_host("s", "node3")
    with pytest.raises(StackError, match="others depend on it"):
        forget_host("s", "my-node2")
