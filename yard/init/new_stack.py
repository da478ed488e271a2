"""Writes a new stack file, and prints its price, quotas, warnings and the next commands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from components.plan.check import Level
from components.spec.explain import nearest
from components.stackfile.read import CLUSTER_KEY, parse_stack
from trainyard import project
from trainyard.errors import Problem
from trainyard.project import installed, stack_file
from yard.init.answers import LOCAL_COMPUTER, InitError, StackDraft, behind_head, collect, host_values, parse_hosts
from yard.preview.account import read_account
from yard.preview.describe import Description
from yard.preview.printing import (
    UNPROVED,
    Line,
    cost_limits,
    costs,
    finding_line,
    findings,
    headline,
    quotas,
    show_parts,
)
from yard.preview.report import Report, stack_json
from yard.show import console, say, warn
from yard.stack.hosts import ScannedKey, scan
from yard.stack.workspace import added_keys

_POST = re.compile(r"(?m)^# post: ([a-z][a-z0-9-]*)$")
_SECONDS = 20
"""Time limit for each call of the cloud's CLI."""
_LOGIN = {"azure": ["az login"], "gcp": ["gcloud auth login", "gcloud auth application-default login"]}
SCHEMA = "schema.json"
"""The file, next to the stack files, with which editors complete and check stack files."""


@dataclass(frozen=True, kw_only=True)
class NewStack:
    """A new stack file, the host keys of existing hosts, and the next commands to run.

    `project_files` lists all new files of a new project.
    """

    file: Path
    text: str
    report: Report
    keys: tuple[ScannedKey, ...]
    next: tuple[str, ...]
    project_files: tuple[str, ...] = ()


def posts() -> dict[str, str]:
    """Return a mapping from blog post to included stack. The stack's file contains the line `# post: NAME`."""
    found = {file.name.split(".")[1]: _POST.search(file.read_text()) for file in installed("stacks").glob("*.yaml")}
    return {post[1]: stack for stack, post in sorted(found.items()) if post}


def init(options: Mapping[str, str], *, post: str | None, force: bool, offline: bool, prompt: bool) -> NewStack:
    """Write a new stack file into the project. The parameters and the errors are those of `prepare`."""
    new = prepare(options, post=post, force=force, offline=offline, prompt=prompt)
    _write(new.file, new.text, force=force)
    return new


def prepare(options: Mapping[str, str], *, post: str | None, force: bool, offline: bool, prompt: bool) -> NewStack:
    """Return a new stack file. If `post` is not None, the file starts as a copy of the blog post's stack file.

    `options` maps questions to answers. If `offline` is true, the cloud's CLI is not used. Raises InitError, or
    RemoteError if an existing host cannot be reached.
    """
    source = _stack_of(post) if post else None
    start = replace(_copy(source) if source else StackDraft(), force=force)
    draft = collect(options, start, prompt=prompt)
    if any(draft.answers.get(key) != answer for key, answer in start.answers.items()):
        # The post's stack file can silence checks. The reasons that it states apply only to its own values.
        draft = draft.with_values({("silence",): None})
    draft, keys = _scanned(draft)
    name, today = draft.answers["name"], datetime.now(tz=UTC).date().isoformat()
    about = f"Written by yard on {today}{f' from stacks/Pulumi.{source}.yaml' if source else ''}. "
    about += "Trainyard's docs/stack-file.md describes the keys. "
    about += "`pulumi stack rm` deletes this file, unless you add --preserve-config."
    lines = ["# yaml-language-server: $schema=schema.json", *(f"# {line}" for line in textwrap.wrap(about, 118))]
    text = "\n".join([*lines, draft.text])
    parsed = parse_stack(text, stack_file(name), LOCAL_COMPUTER)
    description = Description(stack=name, plan=parsed.plan, findings=parsed.findings)
    account = None
    if description.quota and not offline:
        warn("reading quotas and available machine types with the cloud's CLI")
        account = read_account(description, _SECONDS)
    report = Report(description=description, account=account)
    return NewStack(
        file=project.ROOT / stack_file(name), text=text, report=report, keys=keys, next=_next_commands(name, draft)
    )


def _stack_of(post: str) -> str:
    known = posts()
    if post in known:
        return known[post]
    similar = nearest(post, tuple(known))
    fix = f"write {similar}" if similar else f"use one of {', '.join(known)}"
    raise InitError(Problem(path="--from", rule="must be the name of a post", fix=fix))


def _copy(stack: str) -> StackDraft:
    """Return a copy of an included stack file. The name, project, hosts and SSH networks must come from the user."""
    section = yaml.safe_load((installed("stacks") / f"Pulumi.{stack}.yaml").read_text())["config"][CLUSTER_KEY]
    platform, group = section["platform"], next(iter(section["nodes"].values()))
    answers = {
        "provider": platform["provider"],
        "region": platform.get("region") or platform.get("zone"),
        "image": platform.get("image"),
        "machine": group["machine"],
        "count": group.get("count"),
        "budget": section.get("limits", {}).get("max_usd_per_hour"),
        "budget_per_month": section.get("limits", {}).get("max_usd_per_month"),
    }
    return StackDraft(section=section, answers={key: str(value) for key, value in answers.items() if value is not None})


def _scanned(draft: StackDraft) -> tuple[StackDraft, tuple[ScannedKey, ...]]:
    """Scan the existing hosts. Returns a draft with their host keys, and the keys themselves. Raises RemoteError."""
    hosts = parse_hosts(draft.answers.get("host", ""))
    if not hosts:
        return draft, ()
    first, *others = hosts
    through = f"ssh://{first.user}@{first.target}" if behind_head(draft.section) else None
    warn(f"reading the host keys of {len(hosts)} hosts")
    with ThreadPoolExecutor() as pool:
        keys = (scan(first.target), *pool.map(lambda host: scan(host.target, through), others))
    by_target = {key.target: key.host_key for key in keys}
    return draft.with_values(host_values(draft.section, hosts, by_target)), keys


def _write(file: Path, text: str, *, force: bool) -> None:
    """Write the file, and the schema if it is missing. Raises InitError if the file exists and `force` is false."""
    try:
        file.parent.mkdir(exist_ok=True)
        if force:
            # The secrets in the stack's state cannot be decrypted without the keys that Pulumi added to the file.
            kept = added_keys(file.read_text()) if file.exists() else {}
            new = file.with_suffix(".new")
            new.write_text(text + (yaml.safe_dump(kept) if kept else ""))
            new.replace(file)
        else:
            with file.open("x") as opened:
                opened.write(text)
        schema = file.with_name(SCHEMA)
        if not schema.exists():
            schema.write_text(schema_text())
    except FileExistsError:
        fix = "edit it, choose a different name, or replace it with --force"
        raise InitError(Problem(path="NAME", rule=f"{file.relative_to(project.ROOT)} exists", fix=fix)) from None
    except OSError as error:
        fix = f"make the folder {file.parent} writable"
        raise InitError(Problem(path=file.name, rule=str(error.strerror), fix=fix)) from error


def schema_text() -> str:
    return (installed("stacks") / SCHEMA).read_text()


def _next_commands(name: str, draft: StackDraft) -> tuple[str, ...]:
    # The recipe runs on two nodes by default.
    one = " --nodes 1" if len(draft.plan().workers) == 1 else ""
    can_rehearse = draft.provider in _LOGIN and (project.ROOT / "tools" / "stack.py").exists()
    return (
        f"yard preview {name}",
        *([f"python -m tools.stack up {name} --offline"] if can_rehearse else ()),
        *_LOGIN.get(draft.provider, ()),
        f"pulumi stack select --create {name}",
        f"pulumi up -s {name}",
        f"yard submit hello --stack {name}{one} --follow",
    )


def as_json(new: NewStack) -> dict[str, Any]:
    """Return the document that --json prints."""
    described = stack_json(new.report)
    return {
        **{key: described[key] for key in ("stack", "file", "price", "services", "quota", "remarks", "account")},
        "host_keys": [asdict(key) for key in new.keys],
        "next": new.next,
        **({"file": str(new.file), "files": new.project_files} if new.project_files else {}),
    }


def show(new: NewStack) -> None:
    """Print the new files, the stack's costs and problems, and the next commands."""
    report, described = new.report, new.report.description
    for file in new.project_files or (described.file,):
        say(f"wrote {file}")
    say(f"stack {report.stack}: {headline(report)}")
    plan = described.plan
    lines = [Line(line) for line in ((*costs(plan), *cost_limits(plan)) if plan else ())]
    warnings = [Line(finding_line(each), each.level.value) for each in findings(report) if each.level is not Level.INFO]
    show_parts([*lines, *warnings, *quotas(report)], console())
    for key in new.keys:
        command = f"ssh-keygen -lf {key.file}"
        say(f"  {key.target} has the fingerprint {key.fingerprint}; compare it on the host's console: {command}")
    if described.quota:
        say(f"note: {UNPROVED}; start with a small count")
    say("next:")
    for command in new.next:
        say(f"  {command}")
