"""`yard bench`: the shipped benchmarks, judged and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.commands.options import JsonOption, StackOption, remote_of
from jobs.shell import AfterDashes

if TYPE_CHECKING:
    from jobs.bench.records import Record

GroupOption = Annotated[str | None, typer.Option("--group", help="Node group; the one with most GPUs a node.")]
NodesOption = Annotated[int | None, typer.Option("--nodes", min=1, help="How many of its nodes; all.")]
LeastOption = Annotated[float | None, typer.Option("--min", help="Exit 1 below this; replaces the published floor.")]
FromOption = Annotated[Path | None, typer.Option("--from", metavar="FILE", help="Show a kept record; run nothing.")]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Keep the record and a PNG there.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    topic = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Measure a cluster, and judge and draw it.")
    for command in (nccl, train, scaling):
        topic.command(cls=AfterDashes)(command)
    app.add_typer(topic, name="bench")


def nccl(  # noqa: PLR0913, PLR0917  (one parameter per option is how typer declares them)
    context: typer.Context,
    group: GroupOption = None,
    nodes: NodesOption = None,
    least: LeastOption = None,
    kept: FromOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """All-reduce bandwidth by size, in GB/s of busbw; fails below the published floor at the largest size."""
    _bench("nccl", context, group, nodes, least, kept, out, as_json, stack)


def train(  # noqa: PLR0913, PLR0917
    context: typer.Context,
    group: GroupOption = None,
    nodes: NodesOption = None,
    least: LeastOption = None,
    kept: FromOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Speed of a training; --min is in hardware TFLOPS a rank. What follows `--` goes to train.py."""
    _bench("train", context, group, nodes, least, kept, out, as_json, stack)


def scaling(  # noqa: PLR0913, PLR0917
    context: typer.Context,
    group: GroupOption = None,
    nodes: NodesOption = None,
    least: LeastOption = None,
    kept: FromOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """The same training on 1, 2, 4, ... nodes, with as much work a rank; --min is the least efficiency."""
    _bench("scaling", context, group, nodes, least, kept, out, as_json, stack)


def _bench(  # noqa: PLR0913, PLR0917  (what the commands above have in common)
    kind: str,
    context: typer.Context,
    group: str | None,
    nodes: int | None,
    least: float | None,
    kept: Path | None,
    out: Path | None,
    as_json: bool,
    stack: str,
) -> None:
    from jobs.bench.command import Order, run_bench  # noqa: PLC0415

    order = Order(kind=kind, kept=kept, out=out, least=least, as_json=as_json)
    args = context.meta.get(AfterDashes.META, ())

    def measure() -> Record:
        from jobs.bench import collect  # noqa: PLC0415

        field = collect.field_of(remote_of(stack), group, nodes)
        return {"nccl": collect.nccl, "train": collect.train, "scaling": collect.scaling}[kind](field, args, least)

    raise typer.Exit(run_bench(order, measure))
