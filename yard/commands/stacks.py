"""Commands for projects and stack files: new, init, preview, checks, schema, dashboards, prices, bake."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainyard import project
from trainyard.errors import ClusterError
from yard.commands import completion
from yard.commands.options import JsonOption, StackOption
from yard.show import INTERRUPTED, say, say_json, table

if TYPE_CHECKING:
    from yard.init.new_stack import NewStack

app = typer.Typer(rich_markup_mode=None)

_COLOURS = {"error": "red", "warning": "yellow", "info": "dim"}

PostOption = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="POST", autocompletion=completion.posts, help="Start from the stack of this blog post."
    ),
]
ProviderOption = Annotated[str | None, typer.Option("--provider", help="Platform.")]
RegionOption = Annotated[str | None, typer.Option("--region", help="Region or zone.")]
MachineOption = Annotated[str | None, typer.Option("--machine", help="Machine type of the nodes.")]
CountOption = Annotated[str | None, typer.Option("--count", help="Number of nodes.")]
BudgetOption = Annotated[
    str | None, typer.Option("--budget", metavar="USD", help="Maximum list price per hour, or none.")
]
MonthOption = Annotated[
    str | None,
    typer.Option("--budget-per-month", metavar="USD", help="Cost per calendar month after which no more jobs start."),
]
ProjectOption = Annotated[str | None, typer.Option("--project", help="Google Cloud project.")]
SshFromOption = Annotated[
    list[str] | None,
    typer.Option("--ssh-from", metavar="CIDR", help="Network that may connect over SSH. Default: SSH gateway."),
]
HostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="[USER@]ADDRESS[:PORT][=PRIVATE_IP]",
        help="Existing host. The first host becomes the head.",
    ),
]
ImageOption = Annotated[str | None, typer.Option("--image", help="Operating system of existing hosts.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not prompt.")]
NoCliOption = Annotated[bool, typer.Option("--offline", help="Do not use az or gcloud.")]


def _answers(**given: str | list[str] | None) -> dict[str, str]:
    texts = {key: " ".join(value) if isinstance(value, list) else value for key, value in given.items()}
    return {key: text for key, text in texts.items() if text}


def _create(write: Callable[[bool], NewStack], *, yes: bool, as_json: bool) -> None:
    """Write a stack file or a project with `write`, and print the result. The argument of `write` permits prompts."""
    from yard.init import new_stack

    try:
        stack = write(sys.stdin.isatty() and sys.stdout.isatty() and not yes and not as_json)
    except (KeyboardInterrupt, typer.Abort):
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        say_json(new_stack.as_json(stack))
    else:
        new_stack.show(stack)


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the project, its first stack and the cluster.")],
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="FOLDER", help="Folder of the project. Default: NAME.")
    ] = None,
    post: PostOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    machine: MachineOption = None,
    count: CountOption = None,
    budget: BudgetOption = None,
    budget_per_month: MonthOption = None,
    project_id: ProjectOption = None,
    ssh_from: SshFromOption = None,
    host: HostOption = None,
    image: ImageOption = None,
    yes: YesOption = False,
    offline: NoCliOption = False,
    as_json: JsonOption = False,
) -> None:
    """Create a Pulumi project with one stack file. On a terminal, prompts for missing values.

    The project can be a repository of its own. It contains previews for pull requests on GitHub and GitLab.
    """
    from yard.init.new_project import new as write

    options = _answers(
        name=name, provider=provider, region=region, machine=machine, count=count, budget=budget, project=project_id,
        budget_per_month=budget_per_month, image=image, ssh_from=ssh_from, host=host,
    )  # fmt: skip
    to = folder or Path(name)
    _create(lambda ask: write(options, to, post=post, offline=offline, prompt=ask), yes=yes, as_json=as_json)


@app.command()
def init(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Name of the stack and the cluster.")] = None,
    post: PostOption = None,
    provider: ProviderOption = None,
    region: RegionOption = None,
    machine: MachineOption = None,
    count: CountOption = None,
    budget: BudgetOption = None,
    budget_per_month: MonthOption = None,
    project_id: ProjectOption = None,
    ssh_from: SshFromOption = None,
    host: HostOption = None,
    image: ImageOption = None,
    yes: YesOption = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing stack file.")] = False,
    offline: NoCliOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a new stack file. On a terminal, prompts for missing values."""
    project.require("yard init")
    from yard.init.new_stack import init as write

    options = _answers(
        name=name, provider=provider, region=region, machine=machine, count=count, budget=budget, project=project_id,
        budget_per_month=budget_per_month, image=image, ssh_from=ssh_from, host=host,
    )  # fmt: skip
    _create(lambda ask: write(options, post=post, force=force, offline=offline, prompt=ask), yes=yes, as_json=as_json)


@app.command()
def preview(
    stacks: Annotated[
        list[str] | None, typer.Argument(metavar="STACK...", autocompletion=completion.stacks, help="Names of stacks.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Preview all stack files.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Simulate the clouds (default).")] = False,
    live: Annotated[bool, typer.Option("--live", help="Use your Pulumi backend, cloud accounts and quotas.")] = False,
    against: Annotated[
        str | None, typer.Option("--against", metavar="REF", help="Compare with a git revision.")
    ] = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print a comment for a pull request.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show resources, prices, quotas and problems of stacks. Exits with code 1 if there are problems."""
    if bool(stacks) == everything:
        raise typer.BadParameter("name the stacks, or use --all")
    if offline and live:
        raise typer.BadParameter("--offline and --live are mutually exclusive")
    if as_markdown and as_json:
        raise typer.BadParameter("--markdown and --json are mutually exclusive")
    project.require("yard preview")
    from yard.preview.difference import UnknownRevision
    from yard.preview.printing import as_markdown as comment
    from yard.preview.printing import show
    from yard.preview.report import as_json as document
    from yard.preview.report import preview as look
    from yard.stack.workspace import stack_names

    known = stack_names()
    if unknown := [stack for stack in stacks or () if stack not in known]:
        raise typer.BadParameter(f"no stack file for {', '.join(unknown)}; available stacks: {', '.join(known)}")
    try:
        seen = look(list(dict.fromkeys(stacks or known)), live=live, against=against)
    except UnknownRevision as error:
        raise typer.BadParameter(str(error)) from error
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        say_json(document(seen))
    elif as_markdown:
        say(comment(seen))
    else:
        show(seen)
    raise typer.Exit(0 if seen.fine else 1)


@app.command()
def checks(as_json: JsonOption = False) -> None:
    """List the checks for stack files."""
    from components.plan.check import Check
    from components.platforms import PLATFORMS
    from components.platforms.registry import platform_facts
    from components.stackfile.draft_checks import DRAFT_CHECKS
    from components.stackfile.plan_checks import PLAN_CHECKS

    by_platform: dict[str, tuple[Check[Any], ...]] = {"all": (*DRAFT_CHECKS, *PLAN_CHECKS)}
    by_platform |= {name: tuple(platform_facts(name).checks) for name in PLATFORMS}
    rows = [
        (check.id, check.level.value, platform, check.rule, check.fixes)
        for platform, found in by_platform.items()
        for check in found
    ]
    if as_json:
        keys = ("id", "level", "platform", "rule", "fixes")
        say_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    shown = ((*others, "; or: ".join(fixes)) for *others, fixes in rows)
    table(("id", "level", "platform", "rule", "fix"), shown, _COLOURS)


@app.command()
def schema(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND...]", help="Print the schema of this command's --json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line.")] = False,
) -> None:
    """Print the JSON Schema of stack files, or of the document that a command prints."""
    if command:
        files = {file.stem: file for file in (Path(__file__).parents[1] / "schemas").glob("*.json")}
        name = "-".join(command)
        if name not in files:
            raise typer.BadParameter(f"no schema for '{' '.join(command)}'; available: {', '.join(sorted(files))}")
        found = json.loads(files[name].read_text())
    else:
        from components.stackfile.schema import stack_schema

        found = stack_schema()
    say(json.dumps(found, indent=None if as_json else 1))


@app.command()
def dashboards(
    output: Annotated[Path, typer.Option("--output", metavar="DIR", help="Folder for the files.")] = Path("dashboards"),
    as_json: JsonOption = False,
) -> None:
    """Write Grafana dashboards as JSON files."""
    from yard.dashboards import write

    try:
        files = [str(path) for path in write(output)]
    except OSError as error:
        raise ClusterError(f"{output}: {error.strerror}. Fix: choose another folder with --output") from error
    if as_json:
        say_json({"files": files})
        return
    for file in files:
        say(f"written: {file}")


price_list = typer.Typer(name="prices", rich_markup_mode=None)
app.add_typer(price_list)


@price_list.callback(invoke_without_command=True)
def prices(context: typer.Context, as_json: JsonOption = False) -> None:
    """Show the list price of each machine type, with its date."""
    if context.invoked_subcommand:
        return
    from yard.prices import SCOPE, listed

    rows = listed()
    if as_json:
        say_json(rows)
        return
    keys = ("provider", "machine", "usd_per_hour", "spot_usd_per_hour", "region", "dated", "source")
    columns = ("provider", "machine", "$/h", "Spot $/h", "region", "dated", "source")
    table(columns, ([_cell(row[key]) for key in keys] for row in rows), {"unknown": "yellow"})
    say(SCOPE)


@price_list.command()
def update(as_json: JsonOption = False) -> None:
    """Update Azure's prices from its public price list."""
    if not project.is_checkout():
        raise ClusterError(
            "`yard prices update` changes the catalog, which is installed with this version of yard. Fix: run it in a "
            "clone of the repository, or install a newer version"
        )
    from yard.prices import update as renew

    changes = renew()
    if as_json:
        say_json([asdict(change) for change in changes])
        return
    rows = ((change.machine, _cell(change.before), _cell(change.after), change.kept) for change in changes)
    table(("machine", "before", "now", "not changed, because"), rows, {"unknown": "yellow"})
    say("written: components/catalog/prices.yaml; review the difference before you commit it")


def _cell(value: object) -> str:
    return "unknown" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


@app.command()
def bake(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the image's name without building it.")] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Simulate the cloud (docs/dev/offline.md).")] = False,
    as_json: JsonOption = False,
    stack: StackOption = "local",
) -> None:
    """Build an image for a stack. It contains the packages and settings of the machines.

    The name of the image contains a hash of its content, so an image that exists is not built again. New machines start
    from the image if `platform.baked_image` in the stack file is the printed value.
    """
    project.require("yard bake")
    from yard.stack import bake as image

    request = image.request_of(stack)
    if as_json and not dry_run and request.baking.here is None:
        raise typer.BadParameter("add --dry-run, because Pulumi prints its output", param_hint="--json")
    if dry_run:
        found = request.name
    else:
        try:
            found = image.bake(request, simulated=offline)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        say_json({"name": request.name, "baked_image": None if dry_run else found})
    elif dry_run:
        say(found)
    else:
        say(f"baked_image: {found}")
