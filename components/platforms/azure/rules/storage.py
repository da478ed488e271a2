"""Checks for shared storage on Azure."""

from __future__ import annotations

from collections.abc import Iterator

from components.plan.check import Broken, Level, Planned, check

_TIB = 1024


@check("azure-storage-kind", Level.ERROR, "use azure_netapp, azure_files, head_nfs or external")
def kind_known(planned: Planned) -> Iterator[Broken]:
    """Azure supports the kind of shared storage."""
    if planned.plan.storage.kind == "filestore":
        yield Broken(path="cluster.storage.shared.kind", rule="Azure does not offer filestore")


@check("azure-netapp-pool", Level.WARNING, "use {whole}")
def pool_size_is_whole(planned: Planned) -> Iterator[Broken]:
    """The size of a NetApp pool is a whole number of TiB."""
    shared = planned.plan.storage
    rest = -shared.size_gib % _TIB
    if shared.kind == "azure_netapp" and rest:
        yield Broken(
            path="cluster.storage.shared.size_gib",
            rule=f"NetApp Files is billed in whole TiB: {rest} GiB of the pool would be unused",
            words={"whole": shared.size_gib + rest},
        )


@check("azure-files-open", Level.INFO, "use azure_netapp if only the head should have root access to the share")
def files_limits_reported(planned: Planned) -> Iterator[Broken]:
    """A note lists the limits of Azure Files over NFS: no encryption in transit, and no root squash for workers."""
    if planned.plan.storage.kind == "azure_files":
        yield Broken(
            path="cluster.storage.shared.kind",
            rule="NFS to Azure Files is not encrypted in transit, and root on every node has root access to the share",
        )
