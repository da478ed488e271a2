"""Local virtual machines that take the place of a simulated cloud's machines (docs/dev/offline.md)."""

from __future__ import annotations

from collections.abc import Mapping

VCPUS, MEMORY_MIB = 1, 1024
SIZE: Mapping[str, object] = {"vcpus": VCPUS, "memory_mib": MEMORY_MIB, "topology": None}
"""The size of a booted machine and, in the program, of its machine type, because Slurm drains a node that is smaller
than in its configuration. Of a node's files, only slurm.conf and gres.conf depend on the size."""
