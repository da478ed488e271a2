"""What Azure has and refuses as shared storage."""

from __future__ import annotations

from collections.abc import Iterator

from components.checks.base import Planned
from components.errors import Problem

_TIB = 1024


def kind_known(planned: Planned) -> Iterator[Problem]:
    """The shared storage is one that Azure has."""
    if planned.spec.storage.shared.kind == "filestore":
        yield Problem(
            path="cluster.storage.shared.kind",
            rule="filestore is not a storage of Azure",
            fix="use azure_netapp, azure_files, head_nfs or external",
        )


def pool_is_used(planned: Planned) -> Iterator[Problem]:
    """NetApp Files is paid by the pool, and pools come in whole TiB."""
    shared = planned.spec.storage.shared
    rest = -shared.size_gib % _TIB
    if shared.kind == "azure_netapp" and rest:
        yield Problem(
            path="cluster.storage.shared.size_gib",
            rule=f"NetApp Files is sold in whole TiB: {rest} GiB of its pool would be paid for and not used",
            fix=f"use {shared.size_gib + rest}",
        )


def files_are_unencrypted(planned: Planned) -> Iterator[Problem]:
    """Azure Files over NFS knows neither encryption on the way nor root squashing for some clients only."""
    if planned.spec.storage.shared.kind == "azure_files":
        yield Problem(
            path="cluster.storage.shared.kind",
            rule="NFS to Azure Files is not encrypted on its way through the virtual network, and root of every "
            "node is root of the share",
            fix="use azure_netapp where only the head may be that",
        )
