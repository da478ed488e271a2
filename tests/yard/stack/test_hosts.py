"""`yard hosts scan`, `yard hosts forget` and `yard bake`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from components.platforms.registry import Baking
from tests.components.platforms.recording import current_name, planned
from tests.yard.conftest import MakeProgram, Program, printed, refused, yard
from trainyard.errors import RemoteError, StackError
from yard.stack import bake
from yard.stack.hosts import forget_host, scan
from yard.stack.workspace import stack_names


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


@pytest.fixture
def pulumi(program: MakeProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """A fake pulumi with two hosts in its state. One host name is a suffix of the other."""
    # After set-up, a checkout contains a pulumi that takes precedence over the one on PATH.
    monkeypatch.setattr("trainyard.checkout.ROOT", tmp_path)
    names = ["c-hosts-node2-survey", "c-hosts-my-node2-lease", "c-hosts-node2-lease", "c-hosts-node2-files"]
    kind, parent = "command:remote:Command", "urn:pulumi:s::trainyard::a::c-hosts"
    resources = [{"urn": urn(name), "type": kind, "parent": parent} for name in names]
    state = json.dumps({"deployment": {"resources": resources}})
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


@pytest.mark.parametrize("stack", [name for name in stack_names() if not name.startswith(("baremetal", "lambda"))])
def test_dry_run_prints_the_name_and_builds_nothing(stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bake, "bake", lambda *_, **__: pytest.fail("built"))
    name, dry_run = current_name(planned(stack, {}).plan), ("bake", "--stack", stack, "--dry-run")
    assert yard(*dry_run) == (0, f"{name}\n", "")
    assert json.loads(printed(*dry_run, "--json")) == {"name": name, "baked_image": None}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_bake_with_exit_code_130(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    request = bake.request_of("local")
    cleaned: list[bool] = []

    def here(*_: object) -> str:
        try:
            os.kill(os.getpid(), number)
            return "no signal"
        finally:
            # A second signal does not interrupt the removal of the builder.
            os.kill(os.getpid(), number)
            cleaned.append(True)

    baking = Baking(base=request.baking.base, here=here)
    monkeypatch.setattr(bake, "request_of", lambda _: replace(request, baking=baking))
    before = signal.getsignal(number)
    assert yard("bake")[0] == 130
    assert cleaned == [True]
    assert signal.getsignal(number) is before


def test_the_stack_file_of_a_qualified_stack_is_found() -> None:
    assert bake.request_of("acme/trainyard/local") == bake.request_of("local")


def test_images_of_hosts_are_refused_with_the_reason() -> None:
    assert "the platform uses existing hosts" in refused("bake", "--stack", "lambda-a6000")


def test_json_needs_dry_run_in_a_cloud() -> None:
    code, _, err = yard("bake", "--stack", "azure-a100", "--json")
    assert (code, "--dry-run" in err) == (2, True)
