"""`yard rotate` with a recorded pulumi."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.yard.conftest import FakeStack, Program, printed, refused, yard
from trainyard.outputs import Cluster
from yard.stack.rotate import RESOURCES

URN = "urn:pulumi:local::trainyard::trainyard:index:Cluster$pulumi-python:dynamic:Resource"


@pytest.fixture
def engine(stack: FakeStack) -> Program:
    """A pulumi whose state contains all keys. It fails if the file `fails` contains its verb."""
    resources = [{"urn": f"{URN}::yard-{end}", "type": "pulumi-python:dynamic:Resource"} for end in RESOURCES.values()]
    (stack.root / "export.json").write_text(json.dumps({"deployment": {"resources": resources}}))
    (stack.root / "fails").touch()
    (stack.root / "stacks").mkdir()
    (stack.root / "stacks" / "Pulumi.local.yaml").write_text("config: {}\n")
    return stack.program(
        "pulumi",
        f'[[ $1 != "$(<{stack.root}/fails)" ]] || exit 3\n'
        f"case $* in *export*) cat {stack.root}/export.json ;; *output*) cat {stack.root}/outputs.json ;; esac",
    )


def operations(engine: Program) -> list[tuple[str, str]]:
    """Return the verb and the replaced resource of each preview and update."""
    words = [call.split() for call in engine.calls if call.split()[0] in {"preview", "up"}]
    return [(call[0], call[-1]) for call in words]


@pytest.mark.parametrize("key", RESOURCES)
def test_a_rotation_shows_a_preview_and_replaces_one_resource(key: str, engine: Program, stack: FakeStack) -> None:
    urn = f"{URN}::yard-{RESOURCES[key]}"
    code, out, err = yard("rotate", key, "--yes")
    assert (code, f"the key `{key}` of stack local is rotated" in out + err) == (0, True), err
    assert operations(engine) == [("preview", urn), ("up", urn)]
    # The new key is stored at once.
    assert engine.calls[-1].startswith("stack output")


def test_nothing_changes_without_a_confirmation(engine: Program) -> None:
    code, _, err = yard("rotate", "admin")
    assert (code, "add --yes" in err) == (2, True)
    assert yard("rotate", "admin", "--dry-run")[0] == 0
    document = json.loads(printed("rotate", "admin", "--dry-run", "--json"))
    assert document == {"version": 1, "key": "admin", "urn": f"{URN}::yard-admin-key"}
    assert {verb for verb, _ in operations(engine)} == {"preview"}


@pytest.mark.parametrize(("verb", "message"), [("preview", ""), ("up", "nodes can still accept the former key")])
def test_a_failed_operation_ends_the_rotation(verb: str, message: str, engine: Program, stack: FakeStack) -> None:
    (stack.root / "fails").write_text(verb)
    code, _, err = yard("rotate", "munge", "--yes")
    assert code == 3
    assert message in err
    assert operations(engine)[-1][0] == verb


def test_a_stack_of_an_older_version_is_refused(engine: Program, stack: FakeStack) -> None:
    (stack.root / "export.json").write_text('{"deployment": {}}')
    assert "run `pulumi up -s local` with this version" in refused("rotate", "admin", "--yes")
    assert operations(engine) == []


@pytest.mark.parametrize("key", ["munge", "database"])
def test_keys_of_slurm_need_slurm(key: str, engine: Program, stack: FakeStack, local: Cluster) -> None:
    stack.deploy(replace(local, scheduler="none"))
    assert f"has no Slurm, so no node uses a {key} key; nothing was changed" in refused("rotate", key, "--yes")
    assert operations(engine) == []
