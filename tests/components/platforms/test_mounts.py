"""`yard doctor` accepts the mounts of every storage kind, with the NFS version that the platform uses."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import get_args

import pytest

from components.node.parameters import SharedFiles, storage_env
from components.spec.cluster import SharedStorageSpec
from components.stackfile.read import parse_stack
from tests.cloud_init.stage_sandbox import bash
from tests.components.platforms.recording import CONTRACTS, Edits, record, stack_text
from tests.components.platforms.test_contract import CHOICES, REFUSED
from tests.yard.conftest import outputs
from tests.yard.doctor.test_doctor import FIRST, HEAD, examined, healthy
from yard.doctor.checks import CHECKS
from yard.doctor.collect import PROBES

LOCAL = outputs(2, "fake", 2, None)
CASES = [
    (provider, kind)
    for provider, refused in REFUSED.items()
    for kind in get_args(SharedStorageSpec.model_fields["kind"].annotation)
    if kind not in refused
]


@pytest.mark.parametrize(("provider", "kind"), CASES)
def test_mounts_of_every_storage_pass(
    provider: str, kind: str, loops: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    storage = storage_of(provider, {"limits": {}, **CHOICES[kind]} if provider in {"azure", "gcp"} else {})
    version = re.search(r"TRAINYARD_SHARED_NFS=(.*)", storage)
    server = re.search(r"TRAINYARD_SHARED_SOURCE=([^:\n]*)", storage)
    assert version is not None
    assert server is not None
    found = f"{'nfs' if version[1] == '3' else 'nfs4'} rw,nosuid,nodev,noatime,vers={version[1]},hard,proto=tcp"
    (tmp_path / "mounts").write_text("".join(f"source {path} {found} 0 0\n" for path in ("/home", "/shared")))
    (tmp_path / "node.env").write_text(storage)
    lines = healthy()
    probed = run_mounts(tmp_path)
    lines[FIRST] = [line for line in lines[FIRST] if not line.startswith("mounts\t")] + probed
    assert list(CHECKS["mounts"](examined(LOCAL, lines))) == []
    lines[FIRST] = [line.replace(f"vers={version[1]}", "vers=4.0") for line in lines[FIRST]]
    [home, _] = CHECKS["mounts"](examined(LOCAL, lines))
    assert f"differs from vers={version[1]},hard" in home.cause
    lines[FIRST] = [line for line in lines[FIRST] if not line.startswith("mounts\t/")]
    [home, _] = CHECKS["mounts"](examined(LOCAL, lines))
    assert f"start the NFS server on {server[1] or HEAD} " in home.fix


def storage_of(provider: str, edits: Edits) -> str:
    """Return the parameters that locate the shared files on a worker."""
    stack = CONTRACTS[provider].stack
    if edits:
        built = record(stack, edits)
        return built.storage(built.plan.workers[0].name)
    # The head is the server, and the platforms do not set an NFS version.
    return storage_env(parse_stack(stack_text(stack), "test").plan.workers[0], SharedFiles())


def run_mounts(folder: Path) -> list[str]:
    """Run the probe of the mounts with the files node.env and mounts in a folder."""
    probe = "".join((PROBES / f"{name}.sh").read_text() for name in ("lib", "mounts"))
    for place in ("/etc/trainyard/node.env", "/proc/self/mounts"):
        probe = probe.replace(place, f"{folder}/{Path(place).name}")
    script = f"self={FIRST} head={HEAD} home=/home shared=/shared/jobs; stat() {{ :; }}; {probe}\nmounts_facts"
    return bash(script).splitlines()
