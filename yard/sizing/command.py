"""`yard size`: shows the memory that a model needs with each layout, and recommends a layout or a number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from yard.show import say, say_json, table, warn
from yard.sizing.advice import MOST_NODES, Sized, breakdown, fewest_nodes, first_fit, layouts, size
from yard.sizing.gpus import gpu_gb
from yard.sizing.memory import GB, Batch, Layout, Machines, Memory, parse_layout
from yard.sizing.models import Model, model_named


def run_size(  # noqa: PLR0913, PLR0917  (the options of the command)
    model_name: str, gpu: str, machines: Machines, batch: Batch, layout: str | None, as_json: bool
) -> int:
    """Print the sizes. Returns the exit code, which is 1 if the model does not fit. Raises SizeError.

    If `layout` is None, all useful layouts are tried.
    """
    model, gb = model_named(model_name), gpu_gb(gpu)
    tried = [parse_layout(layout)] if layout else _default_layouts(model, machines)
    sizes = [size(model, candidate, machines, batch, gb) for candidate in tried]
    chosen = next((sized for sized in sizes if sized.fits), None) or first_fit(model, machines, batch, gb)
    fits = sizes[0].fits if layout else chosen is not None
    advice = _advice(chosen, model, machines, batch, gb)
    if as_json:
        say_json({
            "model": model.name,
            "parameters": model.parameters,
            "gpu": gpu,
            "gpu_gb": gb,
            **asdict(machines),
            "fits": fits,
            "layouts": [_as_json(sized) for sized in sizes],
            "advice": advice,
        })  # fmt: skip
        return 0 if fits else 1
    gpus = f"{machines.gpus} {gpu} of {gb} GB"
    say(f"{model.name}: {model.parameters / GB:.2f} billion parameters on {gpus}. Largest memory of a GPU in GB:")
    _draw(sizes)
    say(advice)
    if not fits:
        leanest = min(sizes, key=lambda sized: sized.memory.total)
        warn(f"yard: {model.name} does not fit: {leanest.layout.name} needs {breakdown(leanest)}")
    return 0 if fits else 1


def _draw(sizes: Sequence[Sized]) -> None:
    rows = []
    for sized in sizes:
        cells = (f"{part / GB:.1f}" for part in (*asdict(sized.memory).values(), sized.memory.total))
        rows.append((sized.layout.name, *cells, "fits" if sized.fits else "too large"))
    columns = ("LAYOUT", *(part.name.upper() for part in fields(Memory)), "TOTAL", "")
    table(columns, rows, {"fits": "green", "too large": "red"})


def _advice(chosen: Sized | None, model: Model, machines: Machines, batch: Batch, gb: float) -> str:
    """Return one sentence that recommends a layout, or a number of nodes if no layout fits."""
    if chosen:
        return f"Use {_recommended(chosen)}"
    found = fewest_nodes(model, machines.gpus_per_node, batch, gb)
    if found is None:
        few = f"{MOST_NODES} nodes with {machines.gpus_per_node} such GPUs are not sufficient"
        return f"{few}. Use GPUs with more memory."
    nodes, sized = found
    return f"Use {nodes} nodes with {_recommended(sized)}"


def _recommended(sized: Sized) -> str:
    name = sized.layout.name + (" with recomputation" if sized.batch.recompute else "")
    return f"{name}: {sized.memory.total / GB:.1f} of {sized.gpu_gb:g} GB."


def _default_layouts(model: Model, machines: Machines) -> list[Layout]:
    """Return the data-parallel layouts, and the model-parallel layouts with one replica per node or for all nodes."""
    replica_sizes = {1, machines.gpus_per_node, machines.gpus}
    return [layout for layout in layouts(model, machines) if layout.tensor * layout.pipeline in replica_sizes]


def _as_json(sized: Sized) -> dict[str, Any]:
    return {
        "layout": sized.layout.name,
        "recompute": sized.batch.recompute,
        "bytes": {**asdict(sized.memory), "total": sized.memory.total},
        "fits": sized.fits,
    }
