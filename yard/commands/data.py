"""`yard data`: token files for training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from yard.commands.options import JsonOption, OutputsOption, StackOption, remote_of

app = typer.Typer(name="data", no_args_is_help=True, rich_markup_mode=None, help="Create and check token files.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Dataset path without .bin, .idx or .json.")]
HereOption = Annotated[bool, typer.Option("--here", help="Use local files and this machine.")]
OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="GROUP|head", help="Node group or head; default: a group without GPUs, or the head."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing dataset.")]


@app.command()
def prepare(
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A .jsonl file, or a folder of .jsonl files.")],
    name: NameArgument,
    tokenizer: Annotated[str, typer.Option(help="bytes, tiktoken:NAME or tokenizers:FILE.json.")] = "bytes",
    key: Annotated[str, typer.Option(help="Key of the text field in each line.")] = "text",
    bad_lines: Annotated[int, typer.Option(min=0, help="Maximum number of bad lines, which are skipped.")] = 0,
    processes: Annotated[int | None, typer.Option(min=1, help="Number of processes; default: one per core.")] = None,
    force: ForceOption = False,
    here: HereOption = False,
    where: OnOption = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Tokenise JSON lines in parallel. The same command continues an interrupted run."""
    options = ["--tokenizer", tokenizer, "--key", key, "--bad-lines", str(bad_lines)]
    options += ["--processes", str(processes)] if processes else []
    options += ["--force"] if force else []
    _create("prepare", [source, name], options, where, here, as_json, (stack, outputs))


@app.command()
def synth(
    name: NameArgument,
    tokens: Annotated[str, typer.Option(help="Number of tokens, for example 500K or 2G.")] = "10M",
    vocab: Annotated[int, typer.Option(min=3, max=1 << 20, help="Number of distinct tokens.")] = 512,
    seed: Annotated[int, typer.Option(help="The same seed produces the same bytes.")] = 1,
    force: ForceOption = False,
    here: HereOption = False,
    where: OnOption = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Create a synthetic dataset with patterns that a model can learn."""
    options = ["--tokens", tokens, "--vocab", str(vocab), "--seed", str(seed), *(["--force"] if force else [])]
    _create("synth", [name], options, where, here, as_json, (stack, outputs))


@app.command()
def verify(
    name: NameArgument,
    full: Annotated[bool, typer.Option("--full", help="Also read every token.")] = False,
    here: HereOption = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
    outputs: OutputsOption = None,
) -> None:
    """Check the index, the tokens and the memory mapping on every host. Exits with code 1 if a check fails."""
    if here:
        _run_here("verify", [name, *(["--full"] if full else [])], as_json)
    from yard.data import command as data

    raise typer.Exit(data.verify(remote_of(stack, outputs), name, full=full, as_json=as_json))


def _create(
    verb: str,
    paths: Sequence[str],
    options: Sequence[str],
    where: str | None,
    here: bool,
    as_json: bool,
    cluster: tuple[str, Path | None],
) -> None:
    if here:
        _run_here(verb, [*paths, *options], as_json)
    from yard.data import command as data

    remote = remote_of(*cluster)
    absolute = [data.absolute(path, remote.stack.cluster) for path in paths]
    raise typer.Exit(data.make(remote, [*(["--json"] if as_json else []), verb, *absolute, *options], where, as_json))


def _run_here(verb: str, arguments: Sequence[str], as_json: bool) -> NoReturn:
    from yard.data.dataset.__main__ import main

    raise typer.Exit(main([*(["--json"] if as_json else []), verb, *arguments]))
