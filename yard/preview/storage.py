"""Describes the shared storage: write throughput and the time to write a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from components.plan.plan import ClusterPlan
from components.platforms.demand import storage_mib_s
from yard.job.loader import load_job, recipe_names
from yard.job.spec import JobSpec
from yard.preview.shape import CheckpointShape, StorageShape
from yard.sizing import Batch, Machines, Model, SizeError, largest_gb, model_named, parse_layout, size

_CHECKPOINT_BYTES = 14
"""Bytes per parameter: 2 for weights, 12 for Adam's state (ZeRO, arXiv 1910.02054, 3.1). Gradients are not saved."""


def describe_storage(plan: ClusterPlan) -> StorageShape:
    """Return the description of the shared storage. The checkpoint is for the largest model that a recipe can train."""
    rate = storage_mib_s(plan)
    model = max(_fitting(plan), key=lambda fitting: fitting.parameters, default=None)
    return StorageShape(
        kind=plan.storage.kind,
        size_gib=plan.storage.size_gib,
        write_mib_s=None if rate is None else round(rate, 1),
        gpus=sum(host.machine.gpus for host in plan.nodes),
        checkpoint=None if model is None else _checkpoint(model, rate),
    )


def _checkpoint(model: Model, mib_s: float | None) -> CheckpointShape:
    written = model.parameters * _CHECKPOINT_BYTES
    minutes = None if mib_s is None else round(written / (mib_s * 2**20) / 60, 1)
    return CheckpointShape(model=model.name, gb=round(written / 1e9, 1), minutes=minutes)


def _fitting(plan: ClusterPlan) -> Iterator[Model]:
    """Yield the models of all recipes that fit a node group's nodes and GPU memory."""
    for group in plan.groups:
        hosts = plan.group(group)
        machine = hosts[0].machine
        gb = largest_gb(machine.gpu_type)
        if gb is None or not machine.gpus:
            continue
        for recipe in _recipes():
            if recipe.nodes <= len(hosts) and recipe.model is not None and _fits(recipe, machine.gpus, gb):
                yield model_named(recipe.model)


@cache
def _recipes() -> tuple[JobSpec, ...]:
    """Return the recipes that specify a model."""
    return tuple(spec for spec in (load_job(name, {}, {}, []).spec for name in recipe_names()) if spec.model)


def _fits(recipe: JobSpec, gpus_per_node: int, gb: float) -> bool:
    machines = Machines(nodes=recipe.nodes, gpus_per_node=gpus_per_node)
    try:
        found = size(model_named(str(recipe.model)), parse_layout(recipe.layout), machines, Batch(recompute=True), gb)
    except SizeError:
        return False
    return found.fits
