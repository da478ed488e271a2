"""`yard size`: the sums, what fits, and what to do where nothing does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from jobs.show import say, say_json, table
from jobs.sizing.advice import Sized, layouts, least, least_nodes, size, summed
from jobs.sizing.gpus import gpu_gb
from jobs.sizing.memory import Batch, Layout, Machines, Memory, parse_layout
from jobs.sizing.models import Model, model_named

_REFUSED = 1
_GB = 1e9


@dataclass(frozen=True, kw_only=True)
class Question:
    """What the command line asks. `layout` None: judge every one worth trying."""

    model: str
    gpu: str
    machines: Machines
    batch: Batch
    layout: str | None


def run_size(question: Question, as_json: bool) -> int:
    """Show the sizes. Returns the exit code: 1 when what was asked for does not fit. Raises SizeError."""
    model, gb = model_named(question.model), gpu_gb(question.gpu)
    machines, batch = question.machines, question.batch
    asked = [parse_layout(question.layout)] if question.layout else _telling(model, machines)
    sizes = [size(model, layout, machines, batch, gb) for layout in asked]
    chosen = next((sized for sized in sizes if sized.fits), None) or least(model, machines, batch, gb)
    fits = chosen is not None if question.layout is None else sizes[0].fits
    advice = _advice(chosen, model, machines, batch, gb)
    if as_json:
        say_json(
            {**_facts(question, model, gb), "fits": fits, "layouts": [_as_json(s) for s in sizes], "advice": advice}
        )
        return 0 if fits else _REFUSED
    gpus = f"{machines.gpus} {question.gpu} of {gb} GB"
    say(f"{model.name}: {model.parameters / _GB:.2f} billion parameters on {gpus}. GB on the fullest GPU:")
    _draw(sizes)
    say(advice)
    if not fits:
        leanest = min(sizes, key=lambda sized: sized.memory.total)
        sys.stderr.write(f"yard: {model.name} does not fit: {leanest.layout.name} takes {summed(leanest)}\n")
    return 0 if fits else _REFUSED


def _draw(sizes: Sequence[Sized]) -> None:
    names = [part.name for part in fields(Memory)]
    rows = []
    for sized in sizes:
        parts = [getattr(sized.memory, name) for name in names] + [sized.memory.total]
        cells = (f"{part / _GB:.1f}" for part in parts)
        rows.append((sized.layout.name, *cells, "fits" if sized.fits else "too much"))
    table(("LAYOUT", *(name.upper() for name in names), "TOTAL", ""), rows, {"fits": "green", "too much": "red"})


def _facts(question: Question, model: Model, gb: int) -> dict[str, Any]:
    return {
        "model": model.name,
        "parameters": model.parameters,
        "gpu": question.gpu,
        "gpu_gb": gb,
        "nodes": question.machines.nodes,
        "gpus_per_node": question.machines.gpus_per_node,
    }


def _advice(chosen: Sized | None, model: Model, machines: Machines, batch: Batch, gb: float) -> str:
    """Return one sentence: the layout to take, else the number of nodes to ask for."""
    if chosen:
        return f"Take {_named(chosen)}: {chosen.memory.total / _GB:.1f} of {gb:g} GB."
    found = least_nodes(model, machines.gpus_per_node, batch, gb)
    if found is None:
        return f"No number of nodes with {machines.gpus_per_node} such GPUs holds it: choose larger GPUs."
    nodes, sized = found
    return f"Ask for {nodes} nodes and take {_named(sized)}: {sized.memory.total / _GB:.1f} of {gb:g} GB."


def _named(sized: Sized) -> str:
    return sized.layout.name + (" with recomputation" if sized.batch.recompute else "")


def _telling(model: Model, machines: Machines) -> list[Layout]:
    """Return all layouts of whole copies and shards, and of the slices those that use a node's GPUs or all of them."""
    slices = {1, machines.gpus_per_node, machines.gpus}
    return [layout for layout in layouts(model, machines) if layout.tensor * layout.pipeline in slices]


def _as_json(sized: Sized) -> dict[str, Any]:
    parts = {part.name: getattr(sized.memory, part.name) for part in fields(Memory)}
    return {
        "layout": sized.layout.name,
        "recompute": sized.batch.recompute,
        "bytes": {**parts, "total": sized.memory.total},
        "fits": sized.fits,
    }
