"""Reads a stack file or Pulumi's configuration, reports all problems at once, and plans the cluster.

If a section is invalid, the other sections are still checked. This module does not import pulumi.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from components.catalog import Machine, images, machines
from components.plan.check import Computer, Draft, Finding, Level, Planned, run_checks, silence_problems
from components.plan.plan import ClusterPlan, plan_cluster
from components.platforms.registry import platform_facts, platform_model, platform_spec
from components.spec.cluster import ClusterSpec, GroupSpec, HeadSpec, NetworkSpec
from components.spec.explain import dotted, explain, intended, nearest
from components.spec.model import MACHINES, PLATFORMS, ExistingHostsSpec, machine_types
from components.stackfile.draft_checks import DRAFT_CHECKS
from components.stackfile.plan_checks import PLAN_CHECKS
from trainyard.errors import Problem, StackFileError
from trainyard.machines import ACCEPT, ALERT_WEBHOOK, BAKE, END_JOBS
from trainyard.strict_yaml import YamlError, load_strict

NAMESPACE = "trainyard"
CLUSTER_KEY = f"{NAMESPACE}:cluster"
RUN_KEYS = (ACCEPT, BAKE, END_JOBS)
"""Keys that `pulumi up --config` sets for one run but also writes to the stack file."""
KEYS = (CLUSTER_KEY, *RUN_KEYS, ALERT_WEBHOOK)
"""All keys in NAMESPACE."""
_MINIMAL = (
    "{name: yard, platform: {provider: local}, head: {machine: vm-head}, nodes: {gpu: {machine: vm-gpu2, count: 2}}}"
)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A valid stack file with the warnings and notes about it."""

    file: str
    plan: ClusterPlan
    findings: tuple[Finding, ...]


def read_stack(path: Path, computer: Computer | None = None) -> Stack:
    """Return the stack that a file describes. Raises StackFileError. `computer`: see `Planned`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise StackFileError(
            str(path), [Problem(path="file", rule=str(reason), fix="use a readable YAML file in UTF-8")]
        ) from error
    return parse_stack(text, str(path), computer)


def parse_stack(text: str, file: str, computer: Computer | None = None) -> Stack:
    """Return the stack that a file's text describes. Raises StackFileError with all problems."""
    try:
        document = load_strict(text)
    except YamlError as error:
        fix = "correct the YAML there; indent with spaces, and quote values that contain ': ' or begin with punctuation"
        raise StackFileError(file, [Problem(path=f"line {error.line}", rule=error.reason, fix=fix)]) from error
    repeated = [
        Problem(path=_problem_path(keys), rule=f"is repeated in line {line}", fix="keep one of them")
        for keys, line in document.repeated
    ]
    config = document.value.get("config") if isinstance(document.value, dict) else None
    if not isinstance(config, dict) or not config:
        rule, fix = "must be a section that describes the cluster", f"add `{CLUSTER_KEY}:` under it"
        raise StackFileError(file, [*repeated, Problem(path="config", rule=rule, fix=fix)])
    secret = _contains_secret(config.get(CLUSTER_KEY))
    return parse_config(config, file, secret=secret, known=repeated, computer=computer)


def parse_config(
    config: Mapping[Any, Any],
    file: str,
    *,
    secret: bool = False,
    known: Iterable[Problem] = (),
    computer: Computer | None = None,
) -> Stack:
    """Return the stack that Pulumi's configuration describes. Raises StackFileError, whose problems include `known`.

    `secret` states whether the cluster section contains a secret.
    """
    problems = [*known, *_stray_keys(config)]
    section = config.get(CLUSTER_KEY)
    if secret:
        rule = "must not contain a secret, because Pulumi would encrypt the whole section"
        fix = "write it in plain text, and set secrets under other keys"
    elif CLUSTER_KEY not in config:
        rule, fix = "is missing", f"add `{CLUSTER_KEY}: {_MINIMAL}` under config"
    elif not isinstance(section, dict):
        rule, fix = "must be a section of keys and values", f"write something like {_MINIMAL}"
    else:
        return _parse_cluster(section, file, problems, computer)
    raise StackFileError(file, [*problems, Problem(path="cluster", rule=rule, fix=fix)])


def _parse_cluster(section: dict[Any, Any], file: str, problems: list[Problem], computer: Computer | None) -> Stack:
    spec: ClusterSpec | None = None
    details: list[ErrorDetails] = []
    platform = platform_model(section.get("platform"))
    sections: dict[str, type[BaseModel]] = {"platform": platform} if platform else {}
    try:
        spec = cluster_spec(section)
    except ValidationError as error:
        problems += explain(error, ClusterSpec, "cluster", sections)
        details = error.errors(include_url=False)
    draft = _draft(section, {detail["loc"] for detail in details})
    found = list(run_checks(DRAFT_CHECKS, draft))
    problems += _errors(found)
    if spec is None or problems:
        corrected = _corrected(section, details, draft.known_machines or {}, sections)
        if corrected != section:
            try:
                _parse_cluster(corrected, file, [], computer)
            except StackFileError as others:
                problems += _about_other_keys(others.problems, problems)
        raise StackFileError(file, problems)
    image = images()[spec.platform.image]
    plan = plan_cluster(spec, machine_types(spec.platform), image)
    checks = (*PLAN_CHECKS, *platform_facts(plan.provider).checks)
    found += run_checks(checks, Planned(plan=plan, computer=computer))
    levels = {check.id: check.level for check in DRAFT_CHECKS} | {check.id: check.level for check in checks}
    if errors := [*_errors(found), *silence_problems(spec.silence, levels)]:
        raise StackFileError(file, errors)
    findings = tuple(finding for finding in found if finding.check not in spec.silence)
    return Stack(file=file, plan=plan, findings=findings)


def _about_other_keys(found: Iterable[Problem], known: Iterable[Problem]) -> list[Problem]:
    """Return the found problems whose path neither contains nor is inside the path of a known problem."""
    paths = [f"{problem.path}." for problem in known]
    return [
        problem
        for problem in found
        if not any(path.startswith(f"{problem.path}.") or f"{problem.path}.".startswith(path) for path in paths)
    ]


def _corrected(
    section: dict[Any, Any],
    details: Iterable[ErrorDetails],
    known_machines: Iterable[str],
    sections: Mapping[str, type[BaseModel]],
) -> dict[Any, Any]:
    """Return the section with each misspelt key and machine type replaced by the name that its message suggests.

    An invalid count is replaced by the smallest count. With this section, the other sections can be checked together.
    """
    new = deepcopy(section)
    for detail in details:
        # A location can be empty. Keys that are not text are text in a location.
        with suppress(LookupError, TypeError, ValueError):
            *parents, key = detail["loc"]
            place = reduce(getitem, parents, new)
            if detail["type"] == "extra_forbidden":
                value = place.pop(key)
                if name := intended(detail["loc"], ClusterSpec, sections)[-1]:
                    place.setdefault(name, value)
            elif key == "count":
                place[key] = 1 + int(place.get("spares", 0))
    for loc, _, name in _machine_names(new):
        if name not in known_machines and (similar := nearest(name, list(known_machines))):
            reduce(getitem, loc[:-1], new)["machine"] = similar
    return new


def cluster_spec(section: dict[Any, Any]) -> ClusterSpec:
    """Parse a cluster section. Raises pydantic's ValidationError."""
    # Some messages suggest regions and zones that offer the stack's machine types. A misspelt type counts as the type
    # that its own message suggests.
    known = list(machines(section["platform"]["provider"])) if platform_model(section.get("platform")) else []
    names = [name if name in known else nearest(name, known) or name for _, _, name in _machine_names(section)]
    context = {MACHINES: names, PLATFORMS: platform_spec}
    return ClusterSpec.model_validate(section, context=context)


def _draft(section: dict[Any, Any], malformed: set[tuple[str | int, ...]]) -> Draft:
    def well_formed(*keys: str) -> bool:
        return not any(loc[: len(keys)] == keys[: len(loc)] for loc in malformed)

    nodes = section.get("nodes")
    # Keys that are not text are rejected, but `malformed` contains them as text.
    groups = {key: group for key, group in nodes.items() if isinstance(key, str)} if isinstance(nodes, dict) else {}
    model = platform_model(section.get("platform"))
    provider = section["platform"]["provider"] if model else ""
    platform = platform_spec(section["platform"]) if well_formed("platform") else None
    known_machines: Mapping[str, Machine] | None = None
    if platform is not None:
        known_machines = machine_types(platform)
    # For existing hosts, an invalid platform section cannot define the machine types.
    elif model is not None and not issubclass(model, ExistingHostsSpec):
        known_machines = machines(provider)
    return Draft(
        provider=provider,
        platform=platform,
        machines={path: name for loc, path, name in _machine_names(section) if loc not in malformed},
        known_machines=known_machines,
        network=NetworkSpec.model_validate(section.get("network", {})) if well_formed("network") else None,
        head=HeadSpec.model_validate(section["head"]) if well_formed("head") else None,
        nodes={name: GroupSpec.model_validate(group) for name, group in groups.items() if well_formed("nodes", name)},
    )


def _machine_names(section: dict[Any, Any]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Yield the location, path and name of each machine type whose name is text."""
    nodes = section.get("nodes")
    groups = nodes.items() if isinstance(nodes, dict) else ()
    for loc, value in ((("head",), section.get("head")), *((("nodes", str(name)), group) for name, group in groups)):
        machine = value.get("machine") if isinstance(value, dict) else None
        if isinstance(machine, str):
            yield (*loc, "machine"), dotted("cluster", (*loc, "machine")), machine


def _errors(found: Iterable[Finding]) -> list[Problem]:
    return [finding.problem for finding in found if finding.level is Level.ERROR]


def _stray_keys(config: Mapping[Any, Any]) -> list[Problem]:
    """Return a problem for each unknown key in this project's namespace. Pulumi itself ignores unknown keys."""
    own_keys = (str(key) for key in config if str(key).startswith(f"{NAMESPACE}:") or str(key) == "cluster")
    return [
        Problem(
            path=_problem_path(("config", key)),
            rule="is not a known key",
            fix=f"write {CLUSTER_KEY} instead" if nearest(key.rpartition(":")[2], ["cluster"]) else "remove it",
        )
        for key in own_keys
        if key not in KEYS
    ]


def _problem_path(keys: tuple[str, ...]) -> str:
    if keys[:2] == ("config", CLUSTER_KEY):
        return dotted("cluster", keys[2:])
    return dotted("", keys)


def _contains_secret(value: Any) -> bool:
    """Return whether a value contains an encrypted value, that is, a mapping whose only key is `secure`.

    Pulumi treats a configuration value that contains one as a secret.
    """
    if isinstance(value, list):
        return any(map(_contains_secret, value))
    return isinstance(value, dict) and (value.keys() == {"secure"} or any(map(_contains_secret, value.values())))
