"""The bundle: a tar archive with the stages, programs and parameters of all nodes in a cluster. It contains no secrets.

Nodes receive the bundle over SSH, so it can change while they are running. The bundle also contains the files from
user-data, so that running nodes receive newer versions of these files.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass

from components.node.files import NodeFile, files_for
from components.node.parameters import ALL_REDUCE, SharedFiles, kind_files, kind_of, render_gates
from components.plan.plan import ClusterPlan
from trainyard.faults import UPDATE
from trainyard.project import installed

_SHARED = (
    NodeFile("reasons.sh", f"readonly drain_reason={UPDATE}\n"),
    *(
        NodeFile(name, installed(name).read_text())
        for name in (
            "trainyard/faults.py",
            "trainyard/idle_gpus.py",
            "trainyard/locks.py",
            "trainyard/on_times.py",
            "trainyard/printable.py",
        )
    ),
)
"""Definitions that the nodes share with yard. On nodes, the Python modules are also in the package `trainyard`."""


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle and its SHA-256 digest. Equal files result in equal bundles."""

    archive: bytes
    digest: str


def render_bundle(plan: ClusterPlan, shared: SharedFiles) -> Bundle:
    files = bundle_files(plan, shared)
    archive = archived((file.path, file.text.encode(), 0o755 if file.executable else 0o644) for file in files)
    return Bundle(archive=archive, digest=hashlib.sha256(archive).hexdigest())


def bundle_files(plan: ClusterPlan, shared: SharedFiles) -> tuple[NodeFile, ...]:
    """Return the bundle's files, sorted by relative path."""
    kinds = {kind_of(host): host for host in reversed(plan.hosts)}
    shipped = {
        file.member: NodeFile(file.member, file.text, file.executable)
        for host in kinds.values()
        for file in files_for(host.machine.fabric, plan.containers, host.driver)
    }
    own = (file for host in kinds.values() for file in kind_files(plan, host, shared))
    gate = () if render_gates(plan) is None else (NodeFile("bandwidth/allreduce.py", ALL_REDUCE.read_text()),)
    return tuple(sorted((*shipped.values(), *own, *gate, *_SHARED), key=lambda file: file.path))


def archived(files: Iterable[tuple[str, bytes, int]]) -> bytes:
    """Return a tar archive without times and owners. `files` contains each file's path, content and mode."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content, mode in files:
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            entry.mode = mode
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
