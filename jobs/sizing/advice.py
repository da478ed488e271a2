"""Where a model fits: every layout judged, the least one chosen, the least number of nodes, or a refusal with the sum.

For job files::

    refusal("opt-175b", "a100", Machines(nodes=2, gpus_per_node=8))   # a sentence: it cannot fit
    refusal("opt-175b", "a100", Machines(nodes=8, gpus_per_node=8))   # None: it can
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from jobs.sizing.gpus import SizeError, largest_gb
from jobs.sizing.memory import Batch, Layout, Machines, Memory, estimate, parse_layout
from jobs.sizing.models import Model, model_named

_GB = 1e9
_MOST_NODES = 256


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A layout and what it takes."""

    layout: Layout
    batch: Batch
    memory: Memory
    gpu_gb: float

    @property
    def fits(self) -> bool:
        """Whether the fullest GPU can hold it."""
        return self.memory.total <= self.gpu_gb * _GB


def layouts(model: Model, machines: Machines) -> Iterator[Layout]:
    """Yield the layouts worth trying, those first that talk least: whole copies, shards, then slices.

    Tensor slices stay inside a node, where links are fast; pipeline stages go across (arXiv 2104.04473). With stages,
    gradients are kept whole: ZeRO 2 and 3 would reduce them once for every micro-batch.
    """
    names = ["ddp", "zero1", "zero2", *(["hsdp"] if machines.nodes > 1 else []), "fsdp"]
    slices = []
    for tensor in _divisors(machines.gpus_per_node):
        for pipeline in _divisors(machines.gpus // tensor):
            if tensor * pipeline > 1 and model.shape.heads % tensor == 0 and pipeline <= model.shape.layers:
                degrees = [f"{kind}{degree}" for kind, degree in (("tp", tensor), ("pp", pipeline)) if degree > 1]
                slices.append((tensor * pipeline, pipeline, "-".join([*degrees, "zero1"])))
    for name in [*names, *(name for _, _, name in sorted(slices))]:
        yield parse_layout(name)


def size(model: Model, layout: Layout, machines: Machines, batch: Batch, gpu_gb: float) -> Sized:
    """Return what the layout takes. Raises SizeError when layout, model and GPUs do not fit together."""
    memory = estimate(model, layout, machines, batch)
    return Sized(layout=layout, batch=batch, memory=memory, gpu_gb=gpu_gb)


def least(model: Model, machines: Machines, batch: Batch, gpu_gb: float) -> Sized | None:
    """Return the first layout that fits, if need be with recomputation. None: none does."""
    for tried in dict.fromkeys((batch, replace(batch, recompute=True))):
        for layout in layouts(model, machines):
            found = size(model, layout, machines, tried, gpu_gb)
            if found.fits:
                return found
    return None


def least_nodes(model: Model, gpus_per_node: int, batch: Batch, gpu_gb: float) -> tuple[int, Sized] | None:
    """Return the smallest number of nodes on which a layout fits, and that layout. None: none up to 256."""
    for nodes in range(1, _MOST_NODES + 1):
        if found := least(model, Machines(nodes=nodes, gpus_per_node=gpus_per_node), batch, gpu_gb):
            return nodes, found
    return None


def refusal(model: str, gpu_type: str | None, machines: Machines, layout: str = "fsdp") -> str | None:
    """Return why a job cannot run there, with the memory's sum and what would do; None when it can or no GPU is known.

    `gpu_type` is a node group's, as in the stack's outputs; of one that is sold in several sizes the largest is taken,
    and one sequence at a time with recomputation, so what is refused cannot run. Raises SizeError for an unknown model
    or a layout that does not divide the GPUs.
    """
    gb = largest_gb(gpu_type)
    if gb is None or machines.gpus == 0:
        return None
    named = model_named(model)
    found = size(named, parse_layout(layout), machines, Batch(recompute=True), gb)
    if found.fits:
        return None
    enough = _enough(named, parse_layout(layout), machines.gpus_per_node, gb)
    return f"{model} with {layout} on {machines.gpus} {gpu_type} of {gb} GB takes {summed(found)}; {enough}"


def summed(sized: Sized) -> str:
    """Return the memory as a sum in words."""
    memory = sized.memory
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "buffers": memory.buffers,
        "activations and logits": memory.activations + memory.logits,
        "overhead": memory.overhead,
    }
    words = " + ".join(f"{size / _GB:.1f} {part}" for part, size in parts.items())
    return f"{memory.total / _GB:.1f} GB a GPU ({words})"


def _enough(model: Model, layout: Layout, gpus_per_node: int, gb: float) -> str:
    for nodes in range(1, _MOST_NODES + 1):
        try:
            found = size(model, layout, Machines(nodes=nodes, gpus_per_node=gpus_per_node), Batch(recompute=True), gb)
        except SizeError:
            continue  # The slices do not divide this number of GPUs.
        if found.fits:
            return f"{nodes} such nodes would do"
    return "no number of such nodes would do"


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]
