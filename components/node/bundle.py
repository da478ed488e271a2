"""The bundle: stages, programs and parameters for all nodes.

The bundle is delivered with the hand-over, so it can change while the nodes are running. It is a tar archive that is
the same for all nodes in a cluster. Its name is its SHA-256 digest. It contains no secrets. It also contains the files
from user-data, so that running nodes receive later versions of these files.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from dataclasses import dataclass

from components.node.files import NodeFile, files_for
from components.node.install import driver_lock
from components.node.parameters import ALL_REDUCE, SharedFiles, fabric_env, kind_env, kind_of, render_gates, storage_env
from components.plan.plan import ClusterPlan, HostPlan
from trainyard.checkout import ROOT
from trainyard.faults import UPDATE

_SHARED = (
    NodeFile("reasons.sh", f"readonly drain_reason={UPDATE}\n"),
    *(NodeFile(f"trainyard/{name}", (ROOT / "trainyard" / name).read_text()) for name in ("faults.py", "printable.py")),
)
"""Definitions that the nodes share with yard. Python on a node imports them from the same package as yard does."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle and its digest. Bundles with equal content have equal bytes."""

    archive: bytes
    digest: str


def render_bundle(plan: ClusterPlan, shared: SharedFiles) -> Bundle:
    """Return the bundle for a cluster."""
    archive = _archive(bundle_files(plan, shared))
    return Bundle(archive=archive, digest=hashlib.sha256(archive).hexdigest())


def bundle_files(plan: ClusterPlan, shared: SharedFiles) -> tuple[NodeFile, ...]:
    """Return the files in the bundle, sorted by path. The paths are relative."""
    kinds = {kind_of(host): host for host in reversed(plan.hosts)}
    shipped = {
        file.member: NodeFile(file.member, file.text, file.executable)
        for host in kinds.values()
        for file in files_for(host.machine.fabric, plan.containers, host.driver)
    }
    own = (file for host in kinds.values() for file in kind_files(plan, host, shared))
    gate = () if render_gates(plan) is None else (NodeFile("bandwidth/allreduce.py", ALL_REDUCE.read_text()),)
    return tuple(sorted((*shipped.values(), *own, *gate, *_SHARED), key=lambda file: file.path))


def kind_files(plan: ClusterPlan, host: HostPlan, shared: SharedFiles | None) -> tuple[NodeFile, ...]:
    """Return the files for the host's kind: the parameters and the stage names in execution order.

    If `shared` is None, return the files for user-data, which contains only some stages and no storage parameters.
    """
    folder = f"kinds/{kind_of(host)}"
    stages = [
        file.stage
        for file in files_for(host.machine.fabric, plan.containers, host.driver)
        if file.stage and (file.is_birth or shared is not None)
    ]
    birth = (
        NodeFile(f"{folder}/kind.env", kind_env(plan, host)),
        NodeFile(f"{folder}/stages", "".join(f"{stage}\n" for stage in stages)),
    )
    if shared is None:
        return birth
    lock = driver_lock(plan, host)
    return (
        *birth,
        *(() if lock is None else (NodeFile(f"{folder}/driver.lock", lock),)),
        NodeFile(f"{folder}/fabric.env", fabric_env(host)),
        NodeFile(f"{folder}/storage.env", storage_env(host, shared)),
    )


def _archive(files: tuple[NodeFile, ...]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for file in files:
            content = file.text.encode()
            entry = tarfile.TarInfo(file.path)
            entry.size = len(content)
            entry.mode = 0o755 if file.executable else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
