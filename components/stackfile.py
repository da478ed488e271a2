"""From a stack file's text, or Pulumi's reading of it, to a checked spec and its plan. Pure: imports no pulumi.

Everything wrong is found at once: where one section is malformed, the others are still checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from components.catalog import images
from components.checks import (
    DRAFT_CHECKS,
    PLAN_CHECKS,
    Draft,
    Finding,
    Level,
    Planned,
    findings,
    silence_problems,
    unless_silenced,
)
from components.errors import Problem, StackFileError
from components.explain import dotted, explain, nearest
from components.plan import ClusterPlan, plan_cluster
from components.platforms import platform_checks, platform_model, platform_spec
from components.spec import ClusterSpec, GroupSpec, HeadSpec, NetworkSpec
from components.strict_yaml import YamlError, load_strict

NAMESPACE = "trainyard"
CLUSTER_KEY = f"{NAMESPACE}:cluster"
_MINIMAL = (
    "{name: yard, platform: {provider: local}, head: {machine: vm-head}, nodes: {gpu: {machine: vm-gpu2, count: 2}}}"
)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A stack file that may be used. `remarks` are its warnings and notes."""

    file: str
    spec: ClusterSpec
    plan: ClusterPlan
    remarks: tuple[Finding, ...]


def read_stack(path: Path) -> Stack:
    """Return the stack of a file on disk. Raises StackFileError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise StackFileError(
            str(path), [Problem(path="file", rule=str(reason), fix="give a readable YAML file")]
        ) from error
    return parse_stack(text, str(path))


def parse_stack(text: str, file: str) -> Stack:
    """Return the stack that a file's text describes. Raises StackFileError with every problem found in `file`."""
    try:
        document = load_strict(text)
    except YamlError as error:
        fix = "correct the YAML there; indent with spaces, and quote values that hold ': ' or begin with punctuation"
        raise StackFileError(file, [Problem(path=f"line {error.line}", rule=error.reason, fix=fix)]) from error
    repeated = [
        Problem(path=_place(keys), rule=f"stands twice, again in line {line}", fix="keep one of them")
        for keys, line in document.repeated
    ]
    config = document.value.get("config") if isinstance(document.value, dict) else None
    if not isinstance(config, dict) or not config:
        missing = Problem(
            path="config", rule="must be a section with the cluster's description", fix=f"add `{CLUSTER_KEY}:` under it"
        )
        raise StackFileError(file, [*repeated, missing])
    secret = {key for key, value in config.items() if _holds_secret(value)}
    return parse_config(config, secret, file, repeated)


def parse_config(config: Mapping[Any, Any], secret: Iterable[str], file: str, known: Iterable[Problem] = ()) -> Stack:
    """Return the stack that configuration keys (`trainyard:cluster` and others) describe. Raises StackFileError.

    `secret` names the keys that hold secrets; `known` are problems found before, to be told with the rest.
    """
    problems = [*known, *_stray_keys(config)]
    section = config.get(CLUSTER_KEY)
    if CLUSTER_KEY in secret:
        problems.append(
            Problem(
                path="cluster",
                rule="must not hold a secret: all of it would become one",
                fix="write it in plain text; secrets have keys of their own",
            )
        )
    elif CLUSTER_KEY not in config:
        problems.append(Problem(path="cluster", rule="is missing", fix=f"add `{CLUSTER_KEY}: {_MINIMAL}` under config"))
    elif not isinstance(section, dict):
        rule, fix = "must be a section of keys and values", f"write something like {_MINIMAL}"
        problems.append(Problem(path="cluster", rule=rule, fix=fix))
    else:
        return _parse_cluster(section, file, problems)
    raise StackFileError(file, problems)


def _parse_cluster(section: dict[Any, Any], file: str, problems: list[Problem]) -> Stack:
    spec: ClusterSpec | None = None
    malformed: set[tuple[str | int, ...]] = set()
    try:
        spec = ClusterSpec.model_validate(section)
    except ValidationError as error:
        platform = platform_model(section.get("platform"))
        problems += explain(error, ClusterSpec, "cluster", {"platform": platform} if platform else {})
        malformed = {detail["loc"] for detail in error.errors(include_url=False, include_input=False)}
    found = list(findings(DRAFT_CHECKS, _draft(section, malformed)))
    problems += _errors(found)
    if spec is None or problems:
        raise StackFileError(file, problems)
    image = images()[spec.platform.image]
    plan = plan_cluster(spec, spec.platform.known_machines(), image)
    checks = (*PLAN_CHECKS, *platform_checks(plan.provider))
    found += findings(checks, Planned(spec=spec, plan=plan))
    levels = {check.id: check.level for check in DRAFT_CHECKS} | {check.id: check.level for check in checks}
    if errors := [*_errors(found), *silence_problems(spec.silence, levels)]:
        raise StackFileError(file, errors)
    return Stack(file=file, spec=spec, plan=plan, remarks=tuple(unless_silenced(found, spec.silence)))


def _draft(section: dict[Any, Any], malformed: set[tuple[str | int, ...]]) -> Draft:
    """Return the sections that no error lies in."""

    def sound(*place: str) -> bool:
        return not any(loc[: len(place)] == place[: len(loc)] for loc in malformed)

    nodes = section.get("nodes")
    # A key that is not text is refused, in a place that is spelt otherwise than the key.
    groups = {key: group for key, group in nodes.items() if isinstance(key, str)} if isinstance(nodes, dict) else {}
    return Draft(
        platform=platform_spec(section["platform"]) if sound("platform") else None,
        network=NetworkSpec.model_validate(section.get("network", {})) if sound("network") else None,
        head=HeadSpec.model_validate(section["head"]) if sound("head") else None,
        nodes={name: GroupSpec.model_validate(group) for name, group in groups.items() if sound("nodes", name)},
    )


def _errors(found: Iterable[Finding]) -> list[Problem]:
    return [finding.problem for finding in found if finding.level is Level.ERROR]


def _stray_keys(config: Mapping[Any, Any]) -> list[Problem]:
    """Keys of ours that do not exist: a misspelt one would otherwise be ignored in silence."""
    ours = (str(key) for key in config if str(key).startswith(f"{NAMESPACE}:") or str(key) == "cluster")
    return [
        Problem(
            path=_place(("config", key)),
            rule="is not a known key",
            fix=f"write {CLUSTER_KEY} instead" if nearest(key.rpartition(":")[2], ["cluster"]) else "remove it",
        )
        for key in ours
        if key != CLUSTER_KEY
    ]


def _place(keys: tuple[str, ...]) -> str:
    if keys[:2] == ("config", CLUSTER_KEY):
        return dotted("cluster", keys[2:])
    return dotted("", keys)


def _holds_secret(value: Any) -> bool:
    """Pulumi writes an encrypted value as a mapping with the one key `secure`; one makes the whole key secret."""
    if isinstance(value, list):
        return any(map(_holds_secret, value))
    return isinstance(value, dict) and (value.keys() == {"secure"} or any(map(_holds_secret, value.values())))
