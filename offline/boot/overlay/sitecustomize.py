"""Gives the clouds' machine types the size of local virtual machines, because Slurm drains a smaller node.

Python imports this module at its start if the module's folder is in PYTHONPATH. Therefore the Pulumi program needs no
code for booted simulations. Everything else in the catalog is unchanged.
"""

from __future__ import annotations

from functools import cache

from components import catalog
from offline.boot import SIZE

_real = catalog.machines


@cache
def _small(provider: str) -> dict[str, catalog.Machine]:
    """Return the machine types of a provider with the size of a booted machine."""
    if provider not in {"azure", "gcp"}:
        return _real(provider)
    return {name: machine.model_copy(update=SIZE) for name, machine in _real(provider).items()}


catalog.machines = _small
