"""`yard bench`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from yard.commands import completion
from yard.commands.options import EnvironmentOption, JsonOption, OutputsOption, StackOption, remote_of
from yard.shell import AfterDashes

GroupOption = Annotated[
    str | None,
    typer.Option("--group", autocompletion=completion.groups, help="Default: the group with the most GPUs per node."),
]
NodesOption = Annotated[int | None, typer.Option("--nodes", min=1, help="Default: all nodes in the group.")]
LeastOption = Annotated[float | None, typer.Option("--min", help="Exit with code 1 below this value.")]
FromOption = Annotated[Path | None, typer.Option("--from", metavar="FILE", help="Only show this record.")]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Write the record and a plot here.")]


_HELP = {
    "nccl": "All-reduce bus bandwidth by size, in GB/s. --min applies to the largest size.",
    "train": "Training speed. --min is in hardware TFLOPS per rank. Arguments after `--` are passed to train.py.",
    "scaling": "The same training on 1, 2, 4, ... nodes with equal work per rank. --min is the minimum efficiency.",
}
"""Help texts by benchmark. yard/bench/measure.py defines a function for each benchmark."""


app = typer.Typer(name="bench", no_args_is_help=True, rich_markup_mode=None, help="Run benchmarks and plot records.")


def _command(kind: str) -> Callable[..., None]:
    def bench(
        context: typer.Context,
        group: GroupOption = None,
        nodes: NodesOption = None,
        environment: EnvironmentOption = None,
        least: LeastOption = None,
        kept: FromOption = None,
        out: OutOption = None,
        as_json: JsonOption = False,
        stack: StackOption = "local",
        outputs: OutputsOption = None,
    ) -> None:
        from yard.bench import record as records

        if kept:
            record = records.load(kept, kind, least)
        else:
            from yard.bench import measure
            from yard.run.request import own_path

            field = measure.field_of(remote_of(stack, outputs), group, nodes, own_path(environment))
            run = {"nccl": measure.nccl, "train": measure.train, "scaling": measure.scaling}[kind]
            record = run(field, context.meta.get(AfterDashes.META, ()), least)
        raise typer.Exit(records.show(record, kept, out, as_json))

    return bench


for _kind, _text in _HELP.items():
    app.command(_kind, cls=AfterDashes, help=_text)(_command(_kind))
