"""`yard doctor` accepts the mounts of every storage kind, with the NFS version that the platform uses."""

from __future__ import annotations

import asyncio
import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest

from components.node.parameters import SharedFiles, storage_env
from components.spec.cluster import SharedStorageSpec
from components.stackfile.read import parse_stack
from tests.components.platforms.azure import conftest as azure
from tests.components.platforms.gcp import conftest as gcp
from tests.components.platforms.recording import record, stack_text
from tests.yard.conftest import outputs
from tests.yard.doctor.test_doctor import FIRST, HEAD, examined, healthy
from trainyard.errors import StackFileError
from yard.doctor.checks import CHECKS
from yard.doctor.collect import PROBES

LOCAL = outputs(2, "fake", 2, None)
_EXTERNAL = {"kind": "external", "address": "10.1.2.3", "path": "/vol"}
STORAGES: dict[tuple[str, str], dict[str, Any]] = {
    ("azure-a100", "head_nfs"): {"kind": "head_nfs", "size_gib": 1024},
    ("azure-a100", "azure_files"): {"kind": "azure_files", "size_gib": 1024},
    ("azure-a100", "azure_netapp"): {"kind": "azure_netapp", "size_gib": 4096},
    ("azure-a100", "external"): _EXTERNAL,
    ("gcp-a2", "head_nfs"): {"kind": "head_nfs", "size_gib": 1024},
    ("gcp-a2", "filestore"): {"kind": "filestore", "size_gib": 10240},
    ("gcp-a2", "external"): _EXTERNAL,
    ("lambda-a6000", "head_nfs"): {"kind": "head_nfs"},
    ("local", "head_nfs"): {"kind": "head_nfs"},
}
"""The shared storage by stack and kind. A kind that a platform supports without a row here fails the next test."""


def test_every_storage_kind_of_each_platform_has_a_case() -> None:
    kinds = get_args(SharedStorageSpec.model_fields["kind"].annotation)
    for stack in dict.fromkeys(stack for stack, _ in STORAGES):
        for kind in kinds:
            shared = _EXTERNAL if kind == "external" else {"kind": kind, "size_gib": 10240}
            if (stack, kind) in STORAGES:
                parse_stack(stack_text(stack, storage__shared=STORAGES[stack, kind]), "test")
                continue
            with pytest.raises(StackFileError):
                parse_stack(stack_text(stack, storage__shared=shared), "test")


@pytest.mark.parametrize(("stack", "kind"), STORAGES)
def test_mounts_of_every_storage_pass(stack: str, kind: str, loops: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    storage = storage_of(stack, STORAGES[stack, kind])
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


def storage_of(stack: str, shared: dict[str, Any]) -> str:
    """Return the parameters that locate the shared files on a worker."""
    mocks = {"azure-a100": azure, "gcp-a2": gcp}.get(stack)
    if mocks is None:
        # The head is the server, and the platforms do not set an NFS version.
        plan = parse_stack(stack_text(stack, storage__shared=shared), "test").plan
        return storage_env(plan.workers[0], SharedFiles())
    built = record(stack, {"storage__shared": shared}, mocks.answer, mocks.tell)
    return built.storage(built.plan.workers[0].name)


def run_mounts(folder: Path) -> list[str]:
    """Run the probe of the mounts with the files node.env and mounts in a folder."""
    probe = "".join((PROBES / f"{name}.sh").read_text() for name in ("lib", "mounts"))
    probe = probe.replace("/etc/trainyard/node.env", f"{folder}/node.env").replace(
        "/proc/self/mounts", f"{folder}/mounts"
    )
    script = f"self={FIRST} head={HEAD} home=/home shared=/shared/jobs; stat() {{ :; }}; {probe}\nmounts_facts"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
