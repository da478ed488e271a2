"""`yard size`."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated

import typer

from yard.commands.options import JsonOption

app = typer.Typer(rich_markup_mode=None)


@app.command()
def size(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="For example opt-6.7b.")],
    gpu: Annotated[str, typer.Option("--gpu", help="For example h100 or a100-80.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=2000, help="Number of nodes.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus-per-node", min=1, max=64, help="GPUs on each node.")] = 8,
    layout: Annotated[
        str | None,
        typer.Option("--layout", help="ddp, zero1, zero2, zero3, fsdp, hsdp, or a combination such as tp4-pp6-zero1."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences per step on each GPU.")] = 1,
    recompute: Annotated[bool, typer.Option("--recompute", help="Recompute activations.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how much memory a model needs on each GPU. Exits with code 1 if no layout fits."""
    from yard import sizing
    from yard.show import say, say_json, table, warn

    named, gb = sizing.model_named(model), sizing.gpu_gb(gpu)
    machines = sizing.Machines(nodes=nodes, gpus_per_node=gpus)
    wanted = sizing.Batch(sequences=batch, recompute=recompute)
    tried = [sizing.parse_layout(layout)] if layout else sizing.shown_layouts(named, machines)
    sizes = [sizing.size(named, candidate, machines, wanted, gb) for candidate in tried]
    chosen = next((sized for sized in sizes if sized.fits), None) or sizing.first_fit(named, machines, wanted, gb)
    fits = sizes[0].fits if layout else chosen is not None
    advice = sizing.advice(chosen, named, machines, wanted, gb)
    if as_json:
        rows = [
            {
                "layout": sized.layout.name,
                "recompute": sized.batch.recompute,
                "bytes": {**asdict(sized.memory), "total": sized.memory.total},
                "fits": sized.fits,
            }
            for sized in sizes
        ]
        facts = {"model": named.name, "parameters": named.parameters, "gpu": gpu, "gpu_gb": gb, **asdict(machines)}
        say_json({**facts, "fits": fits, "layouts": rows, "advice": advice})
        raise typer.Exit(0 if fits else 1)
    on = f"{machines.gpus} {gpu} of {gb} GB"
    say(f"{named.name}: {named.parameters / 1e9:.2f} billion parameters on {on}. Largest memory of a GPU in GB:")
    cells = [
        (
            sized.layout.name,
            *(f"{part / 1e9:.1f}" for part in (*asdict(sized.memory).values(), sized.memory.total)),
            "fits" if sized.fits else "too large",
        )
        for sized in sizes
    ]
    columns = ("LAYOUT", *(part.name.upper() for part in fields(sizing.Memory)), "TOTAL", "")
    table(columns, cells, {"fits": "green", "too large": "red"})
    say(advice)
    if not fits:
        leanest = min(sizes, key=lambda sized: sized.memory.total)
        warn(f"yard: {named.name} does not fit: {leanest.layout.name} needs {sizing.breakdown(leanest)}")
    raise typer.Exit(0 if fits else 1)
