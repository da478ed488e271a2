"""The kept outputs: read from pulumi once, again when the deployment changed, and gone when it is."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

import jobs.stack
from components.errors import ContractError
from components.outputs import ClusterOutputs
from jobs.errors import StackError
from jobs.stack import load_stack, parse_exports
from tests.jobs.conftest import HOST_KEY, FakeStack, MakeProgram


def test_pulumi_is_asked_once_until_the_state_changes(stack: FakeStack) -> None:
    assert load_stack("local") == load_stack("local")
    assert stack.pulumi.calls == ["stack output --json --show-secrets --non-interactive -s local"]
    stack.touch_state("changed")
    load_stack("local")
    assert len(stack.pulumi.calls) == 2
    load_stack("local", refresh=True)
    assert len(stack.pulumi.calls) == 3


def test_only_the_owner_reads_the_key(stack: FakeStack) -> None:
    folder = load_stack("local").folder
    assert folder == stack.folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(("config", "id_ed25519", "known_hosts", "outputs.json"), 0o600)
    assert (folder / "id_ed25519").read_text() == "not a key\n"
    assert "not a key" not in (folder / "outputs.json").read_text()


def test_a_destroyed_stack_leaves_no_way_in(stack: FakeStack) -> None:
    folder = load_stack("local").folder
    stack.export({})
    stack.touch_state("destroyed")
    with pytest.raises(ContractError, match="run `pulumi up`"):
        load_stack("local")
    assert list(folder.iterdir()) == []


def test_a_contract_of_another_version_is_refused(stack: FakeStack, local_outputs: ClusterOutputs) -> None:
    stack.export({"cluster": {**local_outputs.model_dump(mode="json"), "contract": 2}, "ssh_private_key": "k"})
    with pytest.raises(ContractError, match="contract 2"):
        load_stack("local")


def test_pulumis_own_words_are_passed_on(stack: FakeStack, program: MakeProgram) -> None:
    program("pulumi", "echo \"error: no stack named 'local' found\" >&2; echo more >&2; exit 255")
    with pytest.raises(StackError, match="no stack named 'local' found; deploy it"):
        load_stack("local")


@pytest.mark.parametrize("name", ["", "../up", "a b", "-s"])
def test_odd_stack_names_are_refused(name: str, stack: FakeStack) -> None:
    with pytest.raises(StackError, match="not a stack name"):
        load_stack(name)
    assert stack.pulumi.calls == []


def test_exports_of_a_shell_file() -> None:
    text = "# set-up\nexport A=1\nexport PATH=\"/x/bin:$PATH\" B='two words' # why\nC=3\nexport D=${A}$B\nexport E\n"
    found = parse_exports(text, {"PATH": "/usr/bin"})
    assert found == {"A": "1", "PATH": "/x/bin:/usr/bin", "B": "two words", "D": "1two words"}


def ssh_sees(stack: FakeStack, host: str) -> dict[str, str]:
    """What OpenSSH itself understands of the generated configuration."""
    config = load_stack("local").ssh_config
    said = subprocess.run(["ssh", "-F", str(config), "-G", host], capture_output=True, text=True, check=True).stdout
    return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("yard-head", {"user": "trainer", "hostname": "127.0.0.1", "port": "22001"}),
        ("yard-head-admin", {"user": "ops", "hostname": "127.0.0.1", "port": "22001"}),
        ("yard-gpu-0", {"user": "trainer", "hostname": "127.0.0.1", "port": "22002"}),
        ("yard-gpu-1", {"user": "trainer", "hostname": "10.77.2.2", "port": "22", "proxyjump": "yard-head"}),
        ("yard-gpu-1-admin", {"user": "ops", "hostname": "10.77.2.2", "port": "22", "proxyjump": "yard-head"}),
    ],
)
def test_openssh_understands_the_configuration(
    host: str, expected: dict[str, str], stack: FakeStack, sockets: Path
) -> None:
    seen = ssh_sees(stack, host)
    assert {key: seen[key] for key in expected} == expected
    assert ("proxyjump" in seen) == ("proxyjump" in expected)
    assert seen["hostkeyalias"] == host.removesuffix("-admin")
    assert seen["stricthostkeychecking"] == "true"
    assert seen["userknownhostsfile"] == str(stack.folder / "known_hosts")
    assert seen["identityfile"] == str(stack.folder / "id_ed25519")
    assert Path(seen["controlpath"]).parent == sockets
    assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    # ssh appends a random suffix of 17 characters while it makes the socket; 108 is the kernel's limit.
    assert len(seen["controlpath"]) + 17 < 108


def test_a_home_with_a_long_path_shares_no_connection(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.stack, "SOCKETS", stack.root / ("long" * 20))
    seen = ssh_sees(stack, "yard-head")
    assert seen["controlmaster"] == "false"
    assert "controlpath" not in seen


def test_a_proxy_is_reached_with_the_users_own_keys(stack: FakeStack, local_outputs: ClusterOutputs) -> None:
    outputs = local_outputs.model_dump(mode="json")
    outputs["head"]["proxy_jump"] = "me@203.0.113.9:2222"
    stack.export({"cluster": outputs, "ssh_private_key": "not a key"})
    stack.touch_state("a proxy")
    assert ssh_sees(stack, "yard-head")["proxycommand"] == "ssh -W [%h]:%p ssh://me@203.0.113.9:2222"
    assert ssh_sees(stack, "yard-gpu-1")["proxyjump"] == "yard-head"


def test_known_hosts_name_every_host(stack: FakeStack) -> None:
    lines = (load_stack("local").folder / "known_hosts").read_text().splitlines()
    assert lines == [f"{name} {HOST_KEY}" for name in ("yard-head", "yard-gpu-0", "yard-gpu-1")]
