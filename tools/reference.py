"""Writes the lists in docs/stack-file.md and docs/commands.md from the code: python -m tools.reference.

The lists are between comments, and tests/docs/test_reference.py compares them with the code. `--checks FILE` writes
the page on checks, which only the site contains, because `yard checks` prints the same.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import TextWrapper
from typing import Any

from typer.main import get_command

from components.plan.check import Check
from components.platforms import PLATFORMS
from components.platforms.registry import platform_facts
from components.stackfile.draft_checks import DRAFT_CHECKS
from components.stackfile.plan_checks import PLAN_CHECKS
from components.stackfile.schema import stack_schema
from trainyard.project import ROOT
from yard.commands.cli import app

GUIDES = {
    "bake": "../cloud-init/README.md#baked-images",
    "bench": "sizing.md#benchmarks",
    "cancel": "jobs.md#watch-cancel-and-resume-a-job",
    "checks": "preview.md",
    "code": "sessions.md#editors",
    "cost": "cost.md#what-the-cluster-has-cost",
    "cp": "data.md",
    "dashboards": "monitoring.md#look-at-the-metrics",
    "data": "data.md#token-files",
    "diff": "reports.md#afterwards",
    "doctor": "troubleshooting.md#cluster-checks",
    "drain": "health.md#by-hand",
    "env": "environments.md",
    "heal": "health.md#repair",
    "hostfile": "",
    "hosts": "platforms/hosts.md",
    "init": "platforms/clouds.md#a-new-stack",
    "logs": "jobs.md#watch-cancel-and-resume-a-job",
    "new": "own-repository.md",
    "nodes": "health.md",
    "notebook": "sessions.md#notebooks",
    "preview": "preview.md",
    "prices": "cost.md#what-is-priced",
    "ps": "jobs.md#watch-cancel-and-resume-a-job",
    "pull": "reports.md#afterwards",
    "recipes": "jobs.md",
    "refresh": "team.md#as-a-person",
    "replace": "health.md#by-hand",
    "report": "reports.md#afterwards",
    "reproduce": "blog-posts.md",
    "resume": "jobs.md#watch-cancel-and-resume-a-job",
    "roll": "health.md#by-hand",
    "rotate": "outputs.md#rotation",
    "run": "sessions.md",
    "schema": "outputs.md#documents-of-commands",
    "size": "sizing.md",
    "sleep": "cost.md#sleep",
    "ssh": "outputs.md#keys",
    "submit": "jobs.md",
    "sync": "data.md#a-working-directory",
    "top": "reports.md#now",
    "undrain": "health.md#by-hand",
    "usage": "team.md#limits",
    "wait": "jobs.md#watch-cancel-and-resume-a-job",
    "wake": "cost.md#sleep",
}
"""The page that explains each command, from docs/."""

SECTIONS = {
    "access.via": "platforms/clouds.md#access-to-the-head",
    "containers": "containers.md",
    "gates.nccl_busbw": "health.md#bandwidth-gate",
    "idle": "cost.md#sleep",
    "limits.accounts": "team.md#limits",
    "limits.idle_gpu": "cost.md#gpus-that-are-not-used",
    "limits.max_usd_per_month": "cost.md#limits",
    "mirrors.debian": "platforms/driver.md#mirrors",
    "monitoring": "monitoring.md",
    "nodes.<group>.capacity.kind": "cost.md#spot",
    "nodes.<group>.driver": "platforms/driver.md",
    "nodes.<group>.elastic": "cost.md#elastic-groups",
    "nodes.<group>.placement": "platforms/azure.md#placement-and-capacity",
    "nodes.<group>.spares": "health.md#spares",
    "power_command": "platforms/hosts.md#elastic-groups",
    "protect_storage": "cost.md#stop-paying",
    "repair": "health.md#automatic-repair",
    "ssh.ca": "team.md#certificates",
    "users": "team.md#people",
}
"""The page that explains a key of the stack file, from docs/."""

_TITLES = {
    "all": "All platforms",
    "azure": "Azure",
    "gcp": "Google Cloud",
    "hosts": "Existing hosts",
    "local": "The local platform",
}
_REPEATED = ("limits.people", "limits.accounts")
"""Keys whose sections have the same keys as limits.each_person."""
_ITEM = {"people": "<name>", "accounts": "<name>", "nodes": "<group>", "machines": "<type>"}
"""The placeholder for the names in a mapping."""


_MANY = 1_000_000
"""Higher maxima of numbers only refuse mistyped values, so the page omits them."""


def lists() -> dict[tuple[str, str], str]:
    """Return the Markdown list for each page and name of a list."""
    schema = stack_schema()
    definitions = schema["$defs"]
    made = {
        ("commands", "commands"): _list(_commands()),
        ("stack-file", "cluster"): _keys(definitions["ClusterSpec"], definitions),
    }
    for provider in PLATFORMS:
        name = {"gcp": "GcpSpec"}.get(provider, f"{provider.capitalize()}Spec")
        made["stack-file", provider] = _keys(definitions[name], definitions)
    return made


def checks_page() -> str:
    """Return the page that lists the checks of stack files."""
    checks: dict[str, Iterable[Check[Any]]] = {"all": (*DRAFT_CHECKS, *PLAN_CHECKS)}
    checks |= {provider: platform_facts(provider).checks for provider in PLATFORMS}
    parts = [
        "# Checks of stack files",
        "`yard preview` and `pulumi up` run these checks, and `yard checks` also prints their fixes. A warning whose "
        "id is in the stack file's list `silence` is hidden.",
    ]
    for platform, found in checks.items():
        rows = ((f"`{check.id}`", check.level.value, check.rule) for check in found)
        parts += [f"## {_TITLES[platform]}", _table(("id", "level", "rule"), rows)]
    return "\n\n".join(parts)


def write() -> None:
    """Replace the lists on the pages."""
    for (page, name), text in lists().items():
        file = ROOT / "docs" / f"{page}.md"
        file.write_text(replaced(file.read_text(), name, text))


def replaced(text: str, name: str, content: str) -> str:
    """Return a page with the named list. Raises ValueError if the page has no place for it."""
    begin, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise ValueError(f"the page has no comments {begin.strip()} and {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = (" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows)
    return "\n".join((f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {line} |" for line in lines), ""))


def _list(rows: Iterable[tuple[str, str]]) -> str:
    """Return a list that is wrapped like the pages."""
    wrapper = TextWrapper(120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join((*(wrapper.fill(f"- {name}: {about}") for name, about in rows), ""))


def _commands() -> Iterator[tuple[str, str]]:
    root: Any = get_command(app)
    for name, command in root.commands.items():
        for words, leaf in _leaves((name,), command):
            arguments = [item.metavar or item.name for item in leaf.params if item.param_type_name == "argument"]
            needed = (item for item in leaf.params if item.param_type_name == "option" and item.required)
            arguments += [f"{item.opts[0]} {item.metavar or item.name.upper()}" for item in needed]
            # `--help` prints all sentences.
            about = re.split(r"(?<=\.)\s", leaf.help)[0]
            yield _linked(" ".join(("yard", *words, *arguments)), GUIDES[name]), about


def _leaves(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not getattr(command, "commands", None):
        yield words, command
        return
    for name, child in command.commands.items():
        yield from _leaves((*words, name), child)


def _linked(code: str, guide: str | None) -> str:
    return f"[`{code}`]({guide})" if guide else f"`{code}`"


def _keys(model: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    rows: list[tuple[str, str]] = []
    for path, about in _rows("", model, definitions):
        # Neighbours with the same meaning, for example the mirrors of several archives, share a row.
        if rows and rows[-1][1] == about:
            rows[-1] = (f"{rows[-1][0]}, `{path.rpartition('.')[2]}`", about)
        else:
            rows.append((_linked(path, SECTIONS.get(path)), about))
    return _list(rows)


def _rows(prefix: str, model: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    required = model.get("required", ())
    for key, field in model["properties"].items():
        if "const" in field:  # the key has only one possible value, for example provider
            continue

        path = f"{prefix}{key}"
        inner, repeated = _model(field, definitions)
        optional = any(choice.get("type") == "null" for choice in field.get("anyOf", ()))
        if inner is None or optional or repeated or path in SECTIONS:
            default = "Required." if key in required else _shown(field.get("default"))
            about = _about(field, None if inner is None else inner.get("description"))
            yield path, " ".join(part for part in (about, default) if part)
        if inner is not None and key != "platform" and path not in _REPEATED:
            place = f".{_ITEM[key]}" if key in _ITEM else "[]" if repeated else ""
            yield from _rows(f"{path}{place}.", inner, definitions)


def _model(field: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the section that a field contains, and whether the field contains several."""
    choices = [field, *field.get("anyOf", ()), *field.get("allOf", ())]
    several = [
        field.get("items", {}),
        field.get("additionalProperties", {}),
        *field.get("patternProperties", {}).values(),
    ]
    for group, repeated in ((choices, False), (several, True)):
        for choice in group:
            if isinstance(choice, dict) and "$ref" in choice:
                return definitions[choice["$ref"].rpartition("/")[2]], repeated
    return None, False


def _about(field: Mapping[str, Any], inner: str | None) -> str:
    """Return the field's values and its docstring, or its rule if it has neither."""
    text: str = field.get("description") or inner or ""
    text = re.sub(r"(?s)(?<=\.) It must .*", "", text)
    values = _values(field)
    if values and text.startswith("must be"):
        return values
    text = text[:1].upper() + text[1:]
    text += "." if text and not text.endswith((".", ")")) else ""
    return f"{values} {text}".strip()


def _values(field: Mapping[str, Any]) -> str:
    for choice in (field, *field.get("anyOf", ())):
        if "enum" in choice:
            return ", ".join(f"`{value}`" for value in choice["enum"]) + "."
        if choice.get("type") in ("integer", "number") and choice.get("maximum", _MANY) < _MANY:
            return f"{choice.get('minimum', choice.get('exclusiveMinimum'))}-{choice['maximum']}."
    return ""


def _shown(value: Any) -> str:
    if value is None or isinstance(value, dict) or value == []:
        return ""
    return f"Default: `{str(value).lower() if isinstance(value, bool) else value}`."


def main() -> None:
    """Write the lists, or the page on checks."""
    parser = argparse.ArgumentParser(prog="python -m tools.reference", description="Write the reference from the code.")
    parser.add_argument("--checks", metavar="FILE", type=Path, help="only write the page on checks to this file")
    if file := parser.parse_args().checks:
        file.write_text(checks_page())
    else:
        write()


if __name__ == "__main__":
    main()
