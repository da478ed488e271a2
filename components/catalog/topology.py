"""Topology: the processors of a machine type and the NUMA nodes of its GPUs, as Slurm settings.

Slurm numbers cores by logical index: core 0 is the first core of the first socket (gres.conf manual, `Cores`).
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from components.catalog.fact import Fact

NUMA_AS_SOCKET_SINCE = (22, 5)
"""First Slurm version with SlurmdParameters=numa_node_as_socket (SchedMD/slurm, NEWS for 22.05)."""

SlurmVersion = tuple[int, int]


class Topology(Fact):
    """Sockets, cores and threads as printed by lscpu. `gpu_numa` contains the NUMA node of each GPU, or is empty."""

    sockets: int = Field(ge=1)
    cores_per_socket: int = Field(ge=1)
    threads_per_core: int = Field(ge=1, le=2)
    numa_per_socket: int = Field(default=1, ge=1)
    gpu_numa: tuple[int, ...] = ()
    unverified: tuple[str, ...] = ()
    """Names of the fields whose values are not stated in any published page or code."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.cores_per_socket % self.numa_per_socket:
            raise ValueError("all NUMA nodes in a socket must have the same number of cores")
        if any(not 0 <= node < self.sockets * self.numa_per_socket for node in self.gpu_numa):
            raise ValueError("gpu_numa contains a NUMA node that does not exist")
        return self

    @property
    def vcpus(self) -> int:
        """Number of hardware threads."""
        return self.sockets * self.cores_per_socket * self.threads_per_core

    def needs_numa_as_socket(self, version: SlurmVersion) -> bool:
        """Return whether slurmd needs numa_node_as_socket. Slurm assigns GPUs to sockets, not to NUMA nodes."""
        return self.numa_per_socket > 1 and version >= NUMA_AS_SOCKET_SINCE

    def slurm_sockets(self, version: SlurmVersion) -> tuple[int, int]:
        """Return Sockets and CoresPerSocket for slurm.conf."""
        split = self.numa_per_socket if self.needs_numa_as_socket(version) else 1
        return self.sockets * split, self.cores_per_socket // split

    def gpu_cores(self, version: SlurmVersion) -> tuple[tuple[int, int], ...]:
        """Return the first and last core near each GPU.

        The result is empty if the affinity is unknown, or if Slurm uses only one socket. A GPU gets all cores in its
        socket, because "all the cores in a socket must be specified together" (gres.conf manual).
        """
        sockets, cores = self.slurm_sockets(version)
        if sockets == 1:
            return ()
        numa_per_slurm_socket = self.sockets * self.numa_per_socket // sockets
        firsts = [node // numa_per_slurm_socket * cores for node in self.gpu_numa]
        return tuple((first, first + cores - 1) for first in firsts)
