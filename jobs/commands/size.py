"""`yard size`: how much memory a model takes on each GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from jobs.commands.options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(size)


def size(  # noqa: PLR0913, PLR0917  (one parameter per option is how typer declares them)
    model: Annotated[str, typer.Argument(metavar="MODEL", help="For example opt-6.7b; a wrong name lists them.")],
    gpu: Annotated[str, typer.Option("--gpu", help="For example h100 or a100-80.")],
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=2000, help="Number of nodes.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus-per-node", min=1, max=64, help="GPUs on each node.")] = 8,
    layout: Annotated[
        str | None, typer.Option("--layout", help="ddp, zero1, zero2, zero3, fsdp, hsdp, or as tp4-pp6-zero1.")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Sequences a GPU works on at a time.")] = 1,
    recompute: Annotated[bool, typer.Option("--recompute", help="Keep no activations.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say how much memory a model takes on each GPU, layout by layout, and what fits. Exits 1 when nothing does."""
    from jobs.sizing.command import Question, run_size  # noqa: PLC0415
    from jobs.sizing.memory import Batch, Machines  # noqa: PLC0415

    question = Question(
        model=model,
        gpu=gpu,
        machines=Machines(nodes=nodes, gpus_per_node=gpus),
        batch=Batch(sequences=batch, recompute=recompute),
        layout=layout,
    )
    raise typer.Exit(run_size(question, as_json))
