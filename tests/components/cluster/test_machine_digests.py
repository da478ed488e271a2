"""Changes to machine digests after edits to a stack file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.cluster.busy import changed_or_removed_hosts, machine_digests
from components.stackfile.read import read_stack
from tests.components.platforms.recording import stack_text
from tests.stack_texts import STACKS


def digests(folder: Path, stack: str, **edits: Any) -> dict[str, str]:
    file = folder / "stack.yaml"
    file.write_text(stack_text(stack, **edits))
    return machine_digests(read_stack(file).plan)


def changed(folder: Path, stack: str, **edits: Any) -> tuple[str, ...]:
    """Return the names of the machines whose digests change, without the cluster name prefix."""
    before = digests(folder, stack)
    found = changed_or_removed_hosts(before, digests(folder, stack, **edits))
    return tuple(name.partition("-")[2] for name in found)


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.name)
def test_each_host_has_a_digest(file: Path) -> None:
    stack = read_stack(file)
    assert list(machine_digests(stack.plan)) == [host.name for host in stack.plan.hosts]


@pytest.mark.parametrize(
    ("edits", "names"),
    [
        ({"nodes__gpu__count": 3}, ()),
        ({"nodes__gpu__count": 1}, ("gpu-1",)),
        ({"nodes__gpu__machine": "vm-gpu2-large"}, ("gpu-0", "gpu-1")),
        ({"head__machine": "vm-gpu2-large"}, ("head",)),
    ],
)
def test_only_changed_or_removed_machines_are_returned(
    tmp_path: Path, edits: dict[str, Any], names: tuple[str, ...]
) -> None:
    assert changed(tmp_path, "local", **edits) == names


@pytest.mark.parametrize(
    ("stack", "edits"),
    [
        ("local", {"scheduler": "none"}),
        ("local", {"name": "other"}),
        ("local", {"network__cidr": "10.78.0.0/20"}),
        ("local", {"platform__ssh_port_base": 23000}),
        ("azure-a100", {"platform__boot_disk_gib": 300}),
        ("gcp-a2", {"platform__boot_disk_gib": 300}),
    ],
)
def test_common_settings_change_all_digests(tmp_path: Path, stack: str, edits: dict[str, Any]) -> None:
    assert len(changed(tmp_path, stack, **edits)) == len(digests(tmp_path, stack))


@pytest.mark.parametrize(
    ("stack", "edits"),
    [
        ("local", {"limits": {"max_usd_per_hour": 5}}),
        ("azure-a100", {"platform__protect_storage": False}),
        ("azure-a100", {"storage__shared__size_gib": 8192}),
        ("gcp-a2", {"platform__iap_port": 22201}),
        ("azure-a100", {"platform__image_version": "24.04.2026072901"}),
        ("gcp-a2", {"platform__custom_image": "projects/p/global/images/own"}),
        ("local", {"platform__baked_image": "trainyard-debian-13-0123456789abcdef"}),
        # Existing hosts are changed in place.
        ("lambda-a6000", {"scheduler": "none", "containers": "docker"}),
    ],
)
def test_other_settings_change_no_digest(tmp_path: Path, stack: str, edits: dict[str, Any]) -> None:
    assert changed(tmp_path, stack, **edits) == ()


def test_digests_of_another_version_are_not_compared() -> None:
    after = {"a": "2-0", "b": "2-0"}
    assert changed_or_removed_hosts({"a": "2-1", "b": "2-0"}, after) == ("a",)
    assert changed_or_removed_hosts({"a": "0123456789abcdef", "b": "1-0"}, after) == ()
    assert changed_or_removed_hosts({"a": "2-0", "gone": "1-0"}, after) == ("gone",)


@pytest.mark.parametrize("file", STACKS, ids=lambda file: file.name)
def test_beside_machines_names_existing_fields(file: Path) -> None:
    platform = type(read_stack(file).plan.platform)
    assert platform.beside_machines <= set(platform.model_fields)
