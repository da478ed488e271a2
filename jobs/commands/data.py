"""`yard data`: token files for training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from jobs.commands.options import JsonOption, StackOption, remote_of

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The dataset: NAME.bin, NAME.idx and NAME.json.")]
HereOption = Annotated[bool, typer.Option("--here", help="On this machine, for files here.")]
OnOption = Annotated[
    str | None, typer.Option("--on", metavar="GROUP|head", help="Who does it; a group without GPUs, else the head.")
]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a dataset of that name.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    topic = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make and check token files for training.")
    topic.command()(prepare)
    topic.command()(synth)
    topic.command()(verify)
    app.add_typer(topic, name="data")


def prepare(  # noqa: PLR0913, PLR0917  (one parameter per option is how typer declares them)
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A .jsonl file, or a folder of them.")],
    name: NameArgument,
    tokenizer: Annotated[str, typer.Option(help="bytes, tiktoken:NAME or tokenizers:FILE.json.")] = "bytes",
    key: Annotated[str, typer.Option(help="Where a line's text is.")] = "text",
    bad_lines: Annotated[int, typer.Option(min=0, help="How many bad lines may be left out.")] = 0,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")] = None,
    force: ForceOption = False,
    here: HereOption = False,
    where: OnOption = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Tokenise JSON lines in parallel. An interrupted run goes on where it stopped."""
    options = ["--tokenizer", tokenizer, "--key", key, "--bad-lines", str(bad_lines)]
    options += ["--processes", str(processes)] if processes else []
    options += ["--force"] if force else []
    _make(["prepare"], [source, name], options, where, here, as_json, stack)


def synth(  # noqa: PLR0913, PLR0917  (one parameter per option is how typer declares them)
    name: NameArgument,
    tokens: Annotated[str, typer.Option(help="How many, for example 500K or 2G.")] = "10M",
    vocab: Annotated[int, typer.Option(min=3, max=1 << 20, help="Ids lie below it.")] = 512,
    seed: Annotated[int, typer.Option(help="The same seed, the same bytes.")] = 1,
    force: ForceOption = False,
    here: HereOption = False,
    where: OnOption = None,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Make a dataset from nothing, whose loss can fall."""
    options = ["--tokens", tokens, "--vocab", str(vocab), "--seed", str(seed), *(["--force"] if force else [])]
    _make(["synth"], [name], options, where, here, as_json, stack)


def verify(
    name: NameArgument,
    full: Annotated[bool, typer.Option("--full", help="Look at every token.")] = False,
    here: HereOption = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Check index and tokens, and memory mapping, on every host. Exits 1 when something is wrong."""
    if here:
        _make(["verify"], [name], ["--full"] if full else [], None, here, as_json, stack)
    from jobs import data  # noqa: PLC0415

    raise typer.Exit(data.verify(remote_of(stack), name, full=full, as_json=as_json))


def _make(  # noqa: PLR0913, PLR0917  (what the commands above have in common)
    kind: Sequence[str],
    paths: Sequence[str],
    options: Sequence[str],
    where: str | None,
    here: bool,
    as_json: bool,
    stack: str,
) -> None:
    before = [*(["--json"] if as_json else []), *kind]
    if here:
        from jobs.dataset.__main__ import main  # noqa: PLC0415

        raise typer.Exit(main([*before, *paths, *options]))
    from jobs import data  # noqa: PLC0415

    remote = remote_of(stack)
    there = [data.absolute(path, remote.stack.cluster) for path in paths]
    raise typer.Exit(data.make(remote, [*before, *there, *options], where, as_json))
