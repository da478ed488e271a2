"""Selects the scheduler for a cluster."""

from __future__ import annotations

from yard.run.schedulers.runner import Runner
from yard.run.schedulers.slurm import Slurm


def scheduler_of(name: str) -> Slurm | Runner:
    """Return the scheduler for the value of `scheduler` in a cluster's outputs."""
    return Runner() if name == "none" else Slurm()
