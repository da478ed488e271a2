"""`yard data`: token files for training."""

from __future__ import annotations

from typing import Annotated

import typer

from yard.commands.options import JsonOption, OutputsOption, StackOption, remote_of

app = typer.Typer(name="data", no_args_is_help=True, rich_markup_mode=None, help="Create and check token files.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Dataset path without .bin, .idx or .json.")]
HereOption = Annotated[bool, typer.Option("--here", help="Use local files and this machine.")]


@app.command()
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
    """Create a synthetic dataset with patterns that a model can learn, on the head unless --here is set."""
    from yard import data, dataset

    options = ["--tokens", tokens, "--vocab", str(vocab), "--seed", str(seed), *(["--force"] if force else [])]
    kind = [*(["--json"] if as_json else []), "synth"]
    if here:
        raise typer.Exit(dataset.main([*kind, name, *options]))
    remote = remote_of(stack, outputs)
    raise typer.Exit(data.synth(remote, [*kind, data.absolute(name, remote.stack.cluster), *options]))


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
    from yard import data, dataset

    if here:
        kind = [*(["--json"] if as_json else []), "verify"]
        raise typer.Exit(dataset.main([*kind, name, *(["--full"] if full else [])]))
    raise typer.Exit(data.verify(remote_of(stack, outputs), name, full=full, as_json=as_json))
