"""The Google Cloud stacks with the official plugin, whose requests go to the simulated cloud's API.

Only tools/official.sh runs these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from offline.cloud.gcp import INSTANCE, Gcp
from offline.cloud.official import api_environment, use
from offline.cloud.rest import serving
from tests.components.platforms.living import WholeStack, whole_stack
from tests.offline.cloud.stack import Run

pytestmark = pytest.mark.engine

_HEAD_NFS: dict[str, Any] = {"storage__shared": {"kind": "head_nfs", "size_gib": 1024}}
_FILESTORE = {"storage__shared": {"kind": "filestore", "size_gib": 2560}}
_SLURM = {"scheduler": "slurm", "containers": "none"}
STACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "a2": ("gcp-a2", {}),
    "a2 with a data disk": ("gcp-a2", _HEAD_NFS),
    "a2 Spot, compact": ("gcp-a2", {"nodes__gpu__capacity": {"kind": "spot"}, "nodes__gpu__placement": "compact"}),
    "a2 with a public address": ("gcp-a2", {"access": {"via": "public", "allow_ssh_from": ["192.0.2.0/24"]}}),
    "a2 without SSH from outside": ("gcp-a2", {"access": {"via": "private", "allow_ssh_from": ["192.0.2.0/24"]}}),
    "a2, elastic": ("gcp-a2", {"nodes__gpu__elastic": {"min": 0, "idle_minutes": 20}, "limits": {}, **_SLURM}),
    "a3 Mega": ("gcp-a3-mega", {}),
    "a3 Mega with Filestore": ("gcp-a3-mega", _FILESTORE),
}
CHANGES: dict[str, dict[str, Any]] = {
    "boot disk": {"platform__boot_disk_gib": 300},
    "placement": {"nodes__gpu__placement": "compact"},
    "data disk": {"storage__shared__size_gib": 2048},
    "head": {"head__machine": "n2-standard-16"},
    "bastion": {"access": {"via": "bastion"}},
    "third node": {"nodes__gpu__count": 3},
    "spot": {"nodes__gpu__capacity": {"kind": "spot"}},
}


@contextmanager
def official(folder: Path, home: Path) -> Iterator[WholeStack]:
    """Yield an empty stack that uses the official plugin and the simulated cloud's API."""
    stack = WholeStack(folder)
    use("gcp", home, stack.environment)
    with serving(stack.world) as (url, _):
        stack.environment = api_environment(stack.environment, url)
        yield stack


def fine(run: Run) -> None:
    """Assert that the command succeeded without a warning of the provider."""
    assert run.code == 0, run
    # The project's own checks, and the engine's check of the plugin's version, which tools/official.sh prints.
    known = ("warning: Pulumi.test.yaml:", "is expected to have version")
    lines = run.text.splitlines()
    assert [line for line in lines if "warning: " in line and not any(word in line for word in known)] == []


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_created_unchanged_and_destroyed(name: str, home: Path, tmp_path: Path) -> None:
    source, edits = STACKS[name]
    with official(tmp_path, home) as stack:
        stack.put(source, platform__protect_storage=False, **edits)
        fine(stack.preview())
        assert stack.kinds == [], "a preview must not create resources"
        fine(stack.up())
        assert [found.token for found in stack.world.records()].count(INSTANCE) == 3
        fine(stack.preview("--expect-no-changes"))
        fine(stack.refresh("--expect-no-changes"))
        fine(stack.preview("--expect-no-changes"))
        fine(stack.destroy())
        assert stack.kinds == []


@pytest.fixture(scope="module")
def both(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WholeStack, WholeStack]]:
    """The same cluster with the official plugin and with this project's plugin."""
    simulated = whole_stack(tmp_path_factory.mktemp("simulated"))
    with official(tmp_path_factory.mktemp("official"), home) as real:
        for stack in (real, simulated):
            stack.put("gcp-a2", **_HEAD_NFS)
        fine(real.up())
        simulated.deploy()
        yield real, simulated


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_the_same_plan_as_in_the_simulation(change: str, both: tuple[WholeStack, WholeStack]) -> None:
    for stack in both:
        stack.put("gcp-a2", **_HEAD_NFS, **CHANGES[change])
    planned, simulated = (stack.planned() for stack in both)
    assert planned
    assert planned == simulated


def test_changes_have_the_same_result_as_in_the_simulation(both: tuple[WholeStack, WholeStack]) -> None:
    changes = {key: value for name in CHANGES if name != "spot" for key, value in CHANGES[name].items()}
    for stack in both:
        stack.put("gcp-a2", **{**_HEAD_NFS, **changes})
    real, simulated = both
    fine(real.up())
    simulated.deploy()
    fine(real.refresh("--expect-no-changes"))
    fine(real.preview("--expect-no-changes"))
    assert described(real) == described(simulated)


def described(stack: WholeStack) -> dict[str, Any]:
    """Return what a stack's simulated cloud contains: types and, for a machine, what a booted machine would get."""
    cloud = Gcp()
    cloud.configure({"project": "my-project-123456"})
    found: dict[str, Any] = {record.id: record.token for record in stack.world.records()}
    for record in stack.world.records():
        if machine := cloud.machine(record, stack.world):
            disks = [(disk.serial, disk.gib) for disk in machine.disks]
            kind = machine.metadata["instance"]["machine-type"]
            found[record.id] = (kind, machine.cards, disks, machine.public, machine.gpus, machine.runs, machine.notice)
    return found
