"""Commands that prepare, repeat and measure training: env, data, reproduce, size, bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Annotated

import typer

from yard.commands import completion
from yard.commands.options import (
    AfterDashes,
    EnvironmentOption,
    JsonOption,
    OutputsOption,
    StackOption,
    remote_of,
)
from yard.show import answer, say, say_json, table, warn

app = typer.Typer(rich_markup_mode=None)

env = typer.Typer(
    name="env", no_args_is_help=True, rich_markup_mode=None, help="Build, list and remove Python environments for jobs."
)
app.add_typer(env)


@env.command()
def build(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            autocompletion=completion.environments,
            help="Environment, or a requirements file, with or without hashes.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the packages (no cluster needed).")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Build an environment, unless it exists, and print its path."""
    from yard.environments.definition import definition_of
    from yard.run import environments

    definition = definition_of(name)
    if dry_run:
        lines = environments.notes(name, definition)
        text = "\n  ".join([*lines, " ".join(definition.packages)])
        facts = {**definition.request, "digest": definition.digest, "packages": definition.packages}
        answer(text, facts, as_json)
        return
    path = environments.ensure(remote_of(stack, outputs), definition, (), name)
    answer(path, {"name": definition.name, "path": path}, as_json)


@env.command("ls")
def list_built(as_json: JsonOption = False, stack: StackOption = "local", outputs: OutputsOption = None) -> None:
    """List the environments on the cluster."""
    from yard.run import environments

    environments.show(environments.built(remote_of(stack, outputs)), as_json)


@env.command()
def rm(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME|FOLDER...",
            autocompletion=completion.environments,
            help="All environments with a name, or one folder of `yard env ls`.",
        ),
    ],
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Remove environments that no active job uses."""
    from yard.run import environments

    folders = environments.remove(remote_of(stack, outputs), names)
    answer("\n".join(f"removed {folder}" for folder in folders), {"removed": folders}, as_json)


data = typer.Typer(name="data", no_args_is_help=True, rich_markup_mode=None, help="Create and check token files.")
app.add_typer(data)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Dataset path without .bin, .idx or .json.")]
HereOption = Annotated[bool, typer.Option("--here", help="Use local files and this machine.")]


@data.command()
def synth(
    name: NameArgument,
    tokens: Annotated[str, typer.Option(help="Number of tokens, for example 500K or 2G.")] = "10M",
    vocab: Annotated[int, typer.Option(min=3, max=1 << 20, help="Number of distinct tokens.")] = 512,
    seed: Annotated[int, typer.Option(help="The same seed produces the same bytes.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing dataset.")] = False,
    here: HereOption = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Create a synthetic dataset that a model can learn. It is on the head unless --here is set."""
    from yard.run import data, dataset

    options = ["--tokens", tokens, "--vocab", str(vocab), "--seed", str(seed), *(["--force"] if force else [])]
    kind = [*(["--json"] if as_json else []), "synth"]
    if here:
        raise typer.Exit(dataset.main([*kind, name, *options]))
    remote = remote_of(stack, outputs)
    raise typer.Exit(data.synth(remote, [*kind, data.absolute(name, remote.stack), *options]))


@data.command()
def verify(
    name: NameArgument,
    full: Annotated[bool, typer.Option("--full", help="Also read every token.")] = False,
    here: HereOption = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Check a dataset on every host. Exits with code 1 if a check fails."""
    from yard.run import data, dataset

    if here:
        kind = [*(["--json"] if as_json else []), "verify"]
        raise typer.Exit(dataset.main([*kind, name, *(["--full"] if full else [])]))
    raise typer.Exit(data.verify(remote_of(stack, outputs), name, full=full, as_json=as_json))


@app.command()
def reproduce(
    post: Annotated[
        str,
        typer.Argument(
            metavar="POST",
            autocompletion=completion.posts,
            help="abeja, cyclecloud, deepspeed-azure, greennode or lambda.",
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan (no cluster needed).")] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="Run the smallest size, without GPUs, on the local stack.")
    ] = False,
    as_json: JsonOption = False,
    stack: Annotated[
        str | None,
        typer.Option(
            "--stack",
            autocompletion=completion.stacks,
            help="Default: the stack of the post, or local with --smoke; TRAINYARD_STACK is ignored.",
        ),
    ] = None,
    outputs: OutputsOption = None,
) -> None:
    """Run the jobs of a blog post, and compare the figures.

    The stack must exist (`yard init NAME --from POST`, `pulumi up`). Environments are built if they do not exist.
    """
    from yard.reproduce import steps
    from yard.reproduce.posts import read_post

    chosen = read_post(post, smoke=smoke)
    if stack is not None:
        chosen = replace(chosen, stack=stack)
    if dry_run:
        steps.plan(chosen, as_json)
        return
    raise typer.Exit(steps.reproduce(chosen, remote_of(chosen.stack, outputs), as_json))


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
    cells = []
    for sized in sizes:
        parts = (f"{part / 1e9:.1f}" for part in (*asdict(sized.memory).values(), sized.memory.total))
        cells.append((sized.layout.name, *parts, "fits" if sized.fits else "too large"))
    columns = ("LAYOUT", *(part.name.upper() for part in fields(sizing.Memory)), "TOTAL", "")
    table(columns, cells, {"fits": "green", "too large": "red"})
    say(advice)
    if not fits:
        leanest = min(sizes, key=lambda sized: sized.memory.total)
        warn(f"yard: {named.name} does not fit: {leanest.layout.name} needs {sizing.breakdown(leanest)}")
    raise typer.Exit(0 if fits else 1)


GroupOption = Annotated[
    str | None,
    typer.Option("--group", autocompletion=completion.groups, help="Default: the group with the most GPUs per node."),
]
NodesOption = Annotated[int | None, typer.Option("--nodes", min=1, help="Default: all nodes in the group.")]
LeastOption = Annotated[float | None, typer.Option("--min", help="Exit with code 1 below this value.")]
FromOption = Annotated[Path | None, typer.Option("--from", metavar="FILE", help="Only show this record.")]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Save the record in this folder.")]


_HELP = {
    "nccl": "All-reduce bus bandwidth by size, in GB/s. --min applies to the largest size.",
    "train": "Training speed. --min is in hardware TFLOPS per rank. Arguments after `--` are passed to train.py.",
    "scaling": "The same training on 1, 2, 4 and more nodes. Each rank has equal work. --min limits the efficiency.",
}
"""Mapping from benchmark to help text. yard/run/bench.py defines a function for each benchmark."""

bench = typer.Typer(name="bench", no_args_is_help=True, rich_markup_mode=None, help="Run benchmarks.")
app.add_typer(bench)


def _command(kind: str) -> Callable[..., None]:
    def command(
        context: typer.Context,
        group: GroupOption = None,
        nodes: NodesOption = None,
        environment: EnvironmentOption = None,
        least: LeastOption = None,
        saved: FromOption = None,
        out: OutOption = None,
        as_json: JsonOption = False,
        stack: StackOption = "local",
        outputs: OutputsOption = None,
    ) -> None:
        from yard.run import bench
        from yard.run.request import own_path

        if saved:
            record = bench.load(saved, kind, least)
        else:
            field = bench.field_of(remote_of(stack, outputs), group, nodes, own_path(environment))
            run = {"nccl": bench.nccl, "train": bench.train, "scaling": bench.scaling}[kind]
            record = run(field, context.meta.get(AfterDashes.META, ()), least)
        raise typer.Exit(bench.show(record, out, as_json))

    return command


for _kind, _text in _HELP.items():
    bench.command(_kind, cls=AfterDashes, help=_text)(_command(_kind))
