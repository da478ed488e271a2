"""The comparison of a booted node's files with the rendered files (tests/integration/received.py)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from components.node.files import BIRTH
from components.node.parameters import SharedFiles
from components.node.slurm import render_slurm_conf
from components.stackfile.read import read_stack
from tests.components.platforms.recording import KEYS
from tests.integration.received import HANDOVER, UNITS, Stack, differences, rendered
from tests.stack_texts import STACKS

PLAN = next(read_stack(file).plan for file in STACKS if file.stem == "Pulumi.azure-a100")
SECRETS = {
    f"{HANDOVER}/munge.key": b"munge",
    f"{HANDOVER}/keys/trainer": b"ssh-ed25519 AAAA trainer\n",
    f"{HANDOVER}/keys/ops": b"admin-0123456789ab head-0123456789ab",
}
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def expected() -> Files:
    """The files of a head, as they are rendered."""
    host_keys = {host.name: f"ssh-ed25519 {host.name}" for host in PLAN.hosts}
    return rendered(Stack(PLAN, SharedFiles(disk="/dev/sdz"), KEYS.authority, host_keys), PLAN.head, SECRETS)


def test_the_rendered_files_do_not_differ(expected: Files) -> None:
    assert len(expected) > 150
    assert not differences(expected, {**expected, f"{HANDOVER}/complete": b"4711"})


UNIT = f"{UNITS}/trainyard-bootstrap.service"
CHANGES: dict[str, Callable[[Files], Files]] = {
    f"{UNIT} differs": lambda files: {UNIT: files[UNIT] + b"#"},
    "/etc/slurm/slurm.conf differs": lambda _: {"/etc/slurm/slurm.conf": render_slurm_conf(PLAN).encode()},
    f"{BIRTH}/other is not rendered": lambda _: {f"{BIRTH}/other": b""},
    f"{UNITS}/slurmd.service.d/other.conf is not rendered": lambda _: {f"{UNITS}/slurmd.service.d/other.conf": b""},
}


@pytest.mark.parametrize("line", CHANGES)
def test_a_changed_or_additional_file_is_a_difference(expected: Files, line: str) -> None:
    assert differences(expected, {**expected, **CHANGES[line](expected)}) == [line]


def test_a_missing_file_is_a_difference(expected: Files) -> None:
    assert differences(expected, {path: text for path, text in expected.items() if path != UNIT}) == [
        f"{UNIT} is missing"
    ]
