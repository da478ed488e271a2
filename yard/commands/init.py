"""`yard init`: writes a stack file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from trainyard import checkout
from yard.commands.options import JsonOption
from yard.show import INTERRUPTED, say_json

app = typer.Typer(rich_markup_mode=None)


@app.command()
def init(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the stack and the cluster.")] = None,
    post: Annotated[
        str | None, typer.Option("--from", metavar="POST", help="Start from the stack of this blog post.")
    ] = None,
    provider: Annotated[str | None, typer.Option("--provider", help="Platform.")] = None,
    region: Annotated[str | None, typer.Option("--region", help="Region or zone.")] = None,
    machine: Annotated[str | None, typer.Option("--machine", help="Machine type of the nodes.")] = None,
    count: Annotated[str | None, typer.Option("--count", help="Number of nodes.")] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="USD", help="Maximum list price per hour, or none.")
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="Google Cloud project.")] = None,
    ssh_from: Annotated[
        list[str] | None,
        typer.Option("--ssh-from", metavar="CIDR", help="Network that may connect over SSH. Default: SSH gateway."),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="[USER@]ADDRESS[:PORT][=PRIVATE_IP]",
            help="Existing host. The first host becomes the head.",
        ),
    ] = None,
    image: Annotated[str | None, typer.Option("--image", help="Operating system of existing hosts.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not prompt.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing stack file.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Do not use az or gcloud.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a new stack file. On a terminal, prompts for missing values."""
    checkout.require("yard init")
    from yard.init.new_stack import as_json as document
    from yard.init.new_stack import init as write
    from yard.init.new_stack import show

    given = {
        "name": name,
        "provider": provider,
        "region": region,
        "machine": machine,
        "count": count,
        "budget": budget,
        "project": project,
        "image": image,
        "ssh_from": " ".join(ssh_from) if ssh_from else None,
        "host": " ".join(host) if host else None,
    }
    options = {key: text for key, text in given.items() if text is not None}
    prompt = sys.stdin.isatty() and sys.stdout.isatty() and not yes and not as_json
    try:
        new = write(options, post=post, force=force, offline=offline, prompt=prompt)
    except (KeyboardInterrupt, typer.Abort):
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        say_json(document(new))
    else:
        show(new)
