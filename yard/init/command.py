"""Creates a stack file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from components.plan.plan import ClusterPlan
from components.platforms.local.computer import THIS_COMPUTER
from components.stackfile.read import Stack, parse_stack
from trainyard import checkout
from trainyard.errors import Problem
from yard.init import hosts
from yard.init.check import section_of
from yard.init.interview import InitError, Terminal, collect
from yard.init.known import Known, Section
from yard.init.platforms import STARTERS
from yard.init.posts import stack_of, start_from
from yard.init.render import comments_in, render
from yard.preview.describe import describe_valid
from yard.preview.shape import Description
from yard.quota.account import available_machines, read_account
from yard.quota.verdict import AccountAnswer, Unanswered
from yard.show import warn
from yard.stack.hosts import ScannedKey, scan
from yard.stack.workspace import added_keys, committed_text

_COMPUTER = replace(THIS_COMPUTER, used_ports=lambda plan, ports: ())
"""The ports are checked before the stack's machines start, because other clusters can be removed until then."""
_SECONDS = 20
"""Time limit for each call of a cloud's CLI."""


@dataclass(frozen=True, kw_only=True)
class NewStack:
    """A new stack file. `account` is None if the account was not read. `keys` are the host keys of existing hosts."""

    name: str
    file: Path
    description: Description
    account: AccountAnswer | None
    keys: tuple[ScannedKey, ...]
    login: tuple[str, ...]


def init(
    options: Mapping[str, str], *, post: str | None, force: bool, offline: bool, terminal: Terminal | None
) -> NewStack:
    """Write a stack file and return it. `options` contains the given options by key (questions.py).

    If `post` is not None, the new stack is based on the stack of this blog post. If `offline` is true, the cloud's CLI
    is not used. Raises InitError, and RemoteError if an existing host cannot be reached. After an error, nothing is
    written.
    """
    source = stack_of(post) if post else None
    defaults = start_from(source) if source else Known(answers={}, base={})
    start = Known(answers=defaults.answers, base=defaults.base, force=force)
    if terminal is not None and not offline:
        terminal = replace(terminal, available=partial(_available, say=terminal.say))
    known = collect(options, start, terminal, _COMPUTER)
    keys = _scanned(known) if "host" in known.answers else ()
    for key in keys:
        known = known.with_answer(hosts.KEY_OF + key.target, key.host_key)
    name, section = known.get("name"), section_of(known)
    if "silence" in known.base and all(known.get(each) == value for each, value in defaults.answers.items()):
        # The post's stack states reasons for silencing checks. They are valid only if its values are unchanged.
        section["silence"] = known.base["silence"]
    file = checkout.ROOT / "stacks" / f"Pulumi.{name}.yaml"
    read, text = _rendered(known, section, source, file)
    description = describe_valid(name, read)
    account = None if offline or not description["quota"] else _account(section, description)
    _write(file, text, force=force)
    login = STARTERS[known.get("provider")].login
    return NewStack(name=name, file=file, description=description, account=account, keys=keys, login=login)


def _available(known: Known, say: Callable[[str], None]) -> frozenset[str] | None:
    """Return the machine types that the cloud account can use, or None if the types are unknown."""
    if not STARTERS[known.get("provider")].place:
        return None
    say("  reading the available machine types with the cloud's CLI")
    try:
        return available_machines(section_of(known)["platform"], seconds=_SECONDS)
    except Unanswered as error:
        say(f"  note: all machine types in the catalog are listed: {error}")
        return None


def _scanned(known: Known) -> tuple[ScannedKey, ...]:
    """Return the host key of each host. Raises RemoteError."""
    first, *others = hosts.hosts_in(known)
    through = f"ssh://{first.user}@{first.target}" if hosts.behind_head(known.base) else None
    warn(f"reading the host keys of {1 + len(others)} hosts")
    with ThreadPoolExecutor() as pool:
        return (scan(first.target), *pool.map(lambda host: scan(host.target, through), others))


def _rendered(known: Known, section: Section, source: str | None, file: Path) -> tuple[Stack, str]:
    """Return the checked stack and the text of its file. Raises InitError."""
    where = f"stacks/{file.name}"
    plan = parse_stack(yaml.safe_dump({"config": {"trainyard:cluster": section}}), where, _COMPUTER).plan
    comments = _comments(plan, section)
    for path, more in STARTERS[known.get("provider")].comments.items():
        comments[path] = f"{comments[path]} {more}" if path in comments else more
    today = datetime.now(tz=UTC).date().isoformat()
    about = (
        f"Written by `yard init` on {today}. docs/stack-file.md describes the keys. `pulumi stack rm` deletes this "
        "file, unless you add --preserve-config."
    )
    if source:
        kept = comments_in(committed_text(source))
        comments |= {path: text for path, text in kept.items() if _at(section, path) == _at(known.base, path)}
        about += f" The file is based on stacks/Pulumi.{source}.yaml."
    text = render(section, comments, about)
    return parse_stack(text, where, _COMPUTER), text


def _comments(plan: ClusterPlan, section: Section) -> dict[str, str]:
    """Return comments for the keys of a new stack file, by path."""
    group, machine = next(iter(plan.groups)), plan.nodes[0].machine
    gpus = f"{machine.gpus} x {machine.gpu_type}" if machine.gpus else "no GPUs"
    facts = f"Each machine: {gpus}, {machine.vcpus} vCPUs, {machine.memory_mib // 1024} GiB, fabric {machine.fabric}."
    serves = " It serves /home and /shared." if plan.storage.kind == "head_nfs" else ""
    head = "The head also runs jobs." if plan.head.runs_jobs else f"The head runs no jobs.{serves}"
    found = {
        "head": head,
        f"nodes.{group}": facts,
        "limits": "The stack is refused if the known list prices of machines, storage and gateway exceed the limit.",
    }
    if plan.scheduler == "none":
        found["scheduler"] = "Without Slurm, `yard` starts jobs over SSH."
    if "access" in section:
        gateway = "The head has no public address. `pulumi up` and `yard` connect through the cloud's SSH gateway."
        public = "Only these networks can connect to the head over SSH."
        found["access"] = gateway if plan.access.via == "bastion" else public
    return found


def _at(section: Section, path: str) -> Any:
    """Return the value at a path, or None."""
    value: Any = section
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _account(section: Section, description: Description) -> AccountAnswer:
    warn("reading quotas and available machine types with the cloud's CLI")
    plan = description["plan"]
    machines = list(dict.fromkeys(host["machine"] for host in plan["hosts"])) if plan else []
    return read_account(section["platform"], description["quota"], machines, seconds=_SECONDS)


def _write(file: Path, text: str, *, force: bool) -> None:
    """Write the file atomically. Raises InitError if that fails, or if the file exists and `force` is false."""
    if force and file.exists():
        # Without the keys that Pulumi added, the secrets in the stack's state could not be decrypted.
        kept = added_keys(file.read_text())
        text += yaml.safe_dump(kept) if kept else ""
    new = file.with_suffix(".new")
    try:
        new.write_text(text)
        if force:
            new.replace(file)
        else:
            file.hardlink_to(new)
    except FileExistsError:
        fix = "choose a different name, or replace it with --force"
        raise InitError("yard init", [Problem(path="NAME", rule=f"stacks/{file.name} exists", fix=fix)]) from None
    except OSError as error:
        problem = Problem(path=f"stacks/{file.name}", rule=str(error.strerror), fix="make the folder stacks writable")
        raise InitError("yard init", [problem]) from error
    finally:
        new.unlink(missing_ok=True)
