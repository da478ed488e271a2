"""Finds a layout with which a model fits into GPU memory, or the number of nodes that the model needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

from yard.sizing.gpus import SizeError, largest_gb
from yard.sizing.memory import GB, Batch, Layout, Machines, Memory, estimate, parse_layout
from yard.sizing.models import Model, model_named

MOST_NODES = 256


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A layout, the memory that it needs, and the memory of a GPU in GB."""

    layout: Layout
    batch: Batch
    memory: Memory
    gpu_gb: float

    @property
    def fits(self) -> bool:
        """Whether every GPU has enough memory."""
        return self.memory.total <= self.gpu_gb * GB


def layouts(model: Model, machines: Machines) -> Iterator[Layout]:
    """Yield the useful layouts, ordered by amount of communication: data parallelism first, then model parallelism.

    Tensor parallelism stays within a node, where links are fast; pipeline stages can span nodes (arXiv 2104.04473).
    Model-parallel layouts use ZeRO 1, because ZeRO 2 and 3 would reduce gradients for every micro-batch.
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
    """Return the memory that the layout needs. Raises SizeError if layout, model and GPUs are incompatible."""
    memory = estimate(model, layout, machines, batch)
    return Sized(layout=layout, batch=batch, memory=memory, gpu_gb=gpu_gb)


def first_fit(
    model: Model, machines: Machines, batch: Batch, gpu_gb: float, layout: Layout | None = None
) -> Sized | None:
    """Return the first layout that fits, or None. Layouts with recomputation are tried last.

    If `layout` is given, only this layout is tried.
    """
    for tried in dict.fromkeys((batch, replace(batch, recompute=True))):
        for candidate in [layout] if layout else layouts(model, machines):
            try:
                found = size(model, candidate, machines, tried, gpu_gb)
            except SizeError:
                continue  # The layout's size does not divide the number of GPUs.
            if found.fits:
                return found
    return None


def fewest_nodes(
    model: Model, gpus_per_node: int, batch: Batch, gpu_gb: float, layout: Layout | None = None
) -> tuple[int, Sized] | None:
    """Return the smallest number of nodes on which the model fits, and the layout.

    Returns None if 256 nodes are not sufficient. If `layout` is given, only this layout is tried.
    """
    for nodes in range(1, MOST_NODES + 1):
        machines = Machines(nodes=nodes, gpus_per_node=gpus_per_node)
        if found := first_fit(model, machines, batch, gpu_gb, layout):
            return nodes, found
    return None


def refusal(model: str, gpu_type: str | None, machines: Machines, layout: str = "fsdp") -> str | None:
    """Return a message if a model cannot fit on the machines, or None if it fits or the GPU type is unknown.

    The estimate is a lower bound: one sequence per GPU, recomputation, and the largest memory size of `gpu_type`, which
    is the type in the stack's outputs. The message contains the required memory and a sufficient number of nodes.
    Raises SizeError for an unknown model or an incompatible layout.
    """
    gb = largest_gb(gpu_type)
    if gb is None or machines.gpus == 0:
        return None
    named, chosen, batch = model_named(model), parse_layout(layout), Batch(recompute=True)
    found = size(named, chosen, machines, batch, gb)
    if found.fits:
        return None
    fitting = fewest_nodes(named, machines.gpus_per_node, batch, gb, chosen)
    enough = f"{fitting[0]} such nodes are sufficient" if fitting else f"{MOST_NODES} such nodes are not sufficient"
    return f"{model} with {layout} on {machines.gpus} {gpu_type} of {gb} GB needs {breakdown(found)}; {enough}"


def breakdown(sized: Sized) -> str:
    """Return the memory needed on a GPU and the memory of each component as text."""
    terms = " + ".join(f"{size / GB:.1f} {part}" for part, size in asdict(sized.memory).items())
    return f"{sized.memory.total / GB:.1f} GB per GPU ({terms})"


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]
