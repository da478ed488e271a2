"""URNs of machines in the stack's state, and the `pulumi up` command that replaces the machines."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import yard.repair.machines
import yard.stack.pulumi
from tests.yard.conftest import FakeStack, MakeProgram
from trainyard.machines import HOST_INPUTS
from yard.repair.machines import Machine, machines, replace_machines, wait_for_pulumi


def urn(kind: str, name: str) -> str:
    return f"urn:pulumi:local::trainyard::trainyard:index:Cluster${kind}::{name}"


@pytest.fixture
def export(stack: FakeStack, program: MakeProgram, tmp_path: Path) -> list[dict[str, object]]:
    """The resources that `pulumi stack export` prints."""
    resources: list[dict[str, object]] = [
        {
            "urn": urn(kind, f"{prefix}yard-gpu-{index}"),
            "type": kind,
            "created": f"time {index}",
            "inputs": {HOST_INPUTS[kind]: f"yard-gpu-{index}"},
        }
        for index, (prefix, kind) in enumerate(zip(("", "", "yard-local-"), sorted(HOST_INPUTS), strict=True))
    ]
    resources.append({"urn": urn("gcp:compute/disk:Disk", "yard-gpu-0"), "type": "gcp:compute/disk:Disk"})
    resources.append({"urn": urn("old", "yard-gpu-9"), "type": min(HOST_INPUTS), "delete": True})
    (tmp_path / "export.json").write_text(json.dumps({"deployment": {"resources": resources}}))
    program("pulumi", f'[[ $1 == up ]] || cat "{tmp_path}/export.json"')
    return resources


@pytest.mark.usefixtures("export")
def test_machines_are_found_by_host_name() -> None:
    first, *_, local = sorted(HOST_INPUTS)
    assert machines("local", ["yard-gpu-0", "yard-gpu-2", "yard-gpu-9"]) == {
        "yard-gpu-0": Machine(urn=urn(first, "yard-gpu-0"), created="time 0"),
        "yard-gpu-2": Machine(urn=urn(local, "yard-local-yard-gpu-2"), created="time 2"),
    }


@pytest.mark.usefixtures("export")
def test_up_replaces_the_machines(stack: FakeStack, tmp_path: Path) -> None:
    (stack.root / "stacks").mkdir(exist_ok=True)
    committed = stack.root / "stacks" / "Pulumi.local.yaml"
    committed.write_text("config: {}\n")
    assert replace_machines("local", ["urn:a", "urn:b"]) == 0
    calls = (tmp_path / "programs" / "pulumi.calls").read_text().splitlines()
    # Pulumi writes the salt to the copy of the stack file, not to the committed file.
    copy = stack.root / ".trainyard" / "stacks" / "Pulumi.local.yaml"
    assert calls[-1] == (
        f"up -s local --config-file {copy} --non-interactive --suppress-outputs --yes --skip-preview "
        "--replace urn:a --replace urn:b"
    )


@pytest.mark.usefixtures("export")
def test_a_qualified_stack_has_no_copied_file(tmp_path: Path) -> None:
    wait_for_pulumi("team/trainyard/prod")
    assert replace_machines("team/trainyard/prod", []) == 0
    calls = (tmp_path / "programs" / "pulumi.calls").read_text().splitlines()
    assert calls[-1] == "up -s team/trainyard/prod --non-interactive --suppress-outputs --yes --skip-preview"


def test_a_roll_waits_for_a_running_pulumi(
    stack: FakeStack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = stack.root / "state/.pulumi/locks/organization/trainyard/local/one.json"
    lock.parent.mkdir(parents=True)
    sleeper = subprocess.Popen(["bash", "-c", "exec -a pulumi sleep 60"])
    holder = {"pid": sleeper.pid, "hostname": socket.gethostname(), "timestamp": "now"}
    lock.write_text(json.dumps(holder))
    monkeypatch.setattr(yard.stack.pulumi, "_is_pulumi", lambda _: sleeper.poll() is None)

    def end(_seconds: float) -> None:
        sleeper.kill()
        sleeper.wait()

    # The real module stays unchanged, because threads of other tests can call time.sleep.
    monkeypatch.setattr(yard.repair.machines, "time", SimpleNamespace(sleep=end))
    wait_for_pulumi("local")
    assert f"waiting: stack 'local' is in use: pulumi process {sleeper.pid}" in capsys.readouterr().out
    assert not lock.exists()
