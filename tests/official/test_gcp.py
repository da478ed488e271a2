"""The Google Cloud stacks with the official provider, whose requests go to a simulated Google API on loopback.

Only tools/official.sh runs these tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.components.platforms.living import WholeStack, whole_stack
from tests.official.conftest import use_official
from tests.official.google_api import GoogleApi, serving
from tests.offline.cloud.stack import Run

pytestmark = pytest.mark.engine

_HEAD_NFS: dict[str, Any] = {"storage__shared": {"kind": "head_nfs", "size_gib": 1024}}
_FILESTORE = {"storage__shared": {"kind": "filestore", "size_gib": 2560}}
STACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "a2": ("gcp-a2", {}),
    "a2 with a data disk": ("gcp-a2", _HEAD_NFS),
    "a2 Spot, compact": ("gcp-a2", {"nodes__gpu__capacity": {"kind": "spot"}, "nodes__gpu__placement": "compact"}),
    "a2 with a public address": ("gcp-a2", {"access": {"via": "public", "allow_ssh_from": ["192.0.2.0/24"]}}),
    "a2 without SSH from outside": ("gcp-a2", {"access": {"via": "private", "allow_ssh_from": ["192.0.2.0/24"]}}),
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


@pytest.fixture(scope="module")
def api() -> Iterator[tuple[GoogleApi, str]]:
    with serving() as served:
        yield served


def official(folder: Path, home: Path, url: str) -> WholeStack:
    """Return an empty stack that uses the official provider and the simulated API."""
    stack = WholeStack(folder)
    use_official(stack, home, "gcp")
    bases = {"COMPUTE": "compute", "FILESTORE": "file", "IAM": "iam", "IAM_BETA": "iam", "RESOURCE_MANAGER": "crm"}
    stack.environment |= {
        **{f"GOOGLE_{name}_CUSTOM_ENDPOINT": f"{url}/{base}/v1/" for name, base in bases.items()},
        "GOOGLE_OAUTH_ACCESS_TOKEN": "made-up",
        "PULUMI_GCP_SKIP_REGION_VALIDATION": "true",
        # The provider asks another server for the user's name and waits for the answer. The API refuses the request.
        "HTTPS_PROXY": url,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    return stack


def fine(run: Run) -> None:
    """Assert that the command succeeded without a warning of the provider."""
    assert run.code == 0, run
    # The project's own checks, and the engine's check of the plugin's version, which tools/official.sh prints.
    known = ("warning: stacks/Pulumi.test.yaml:", "is expected to have version")
    lines = run.text.splitlines()
    assert [line for line in lines if "warning: " in line and not any(word in line for word in known)] == []


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_created_unchanged_and_destroyed(
    name: str, home: Path, api: tuple[GoogleApi, str], tmp_path: Path
) -> None:
    resources = api[0].resources
    resources.clear()
    stack = official(tmp_path, home, api[1])
    source, edits = STACKS[name]
    stack.put(source, platform__protect_storage=False, **edits)
    fine(stack.preview())
    assert resources == {}, "a preview must not create resources"
    fine(stack.up())
    assert len([path for path in resources if "/instances/" in path and "/zones/" in path]) == 3
    fine(stack.preview("--expect-no-changes"))
    fine(stack.refresh("--expect-no-changes"))
    fine(stack.preview("--expect-no-changes"))
    fine(stack.destroy())
    assert set(resources) == set()


@pytest.fixture(scope="module")
def both(
    home: Path, api: tuple[GoogleApi, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[WholeStack, WholeStack]:
    """The same cluster with the official provider and with the simulated cloud."""
    api[0].resources.clear()
    real = official(tmp_path_factory.mktemp("official"), home, api[1])
    simulated = whole_stack(tmp_path_factory.mktemp("simulated"))
    for stack in (real, simulated):
        stack.put("gcp-a2", **_HEAD_NFS)
    fine(real.up())
    simulated.deploy()
    return real, simulated


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_the_same_plan_as_in_the_simulation(change: str, both: tuple[WholeStack, WholeStack]) -> None:
    for stack in both:
        stack.put("gcp-a2", **_HEAD_NFS, **CHANGES[change])
    planned, simulated = (stack.planned() for stack in both)
    assert planned
    assert planned == simulated
