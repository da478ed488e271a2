"""`yard size`."""

from __future__ import annotations

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
    from yard.sizing.command import run_size
    from yard.sizing.memory import Batch, Machines

    machines, shape = Machines(nodes=nodes, gpus_per_node=gpus), Batch(sequences=batch, recompute=recompute)
    raise typer.Exit(run_size(model, gpu, machines, shape, layout, as_json))
