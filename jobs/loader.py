"""From a recipe's name or a job file to a checked JobSpec. Every problem is found at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from components.errors import Problem
from jobs.combinations import WORKLOADS, combination_problems
from jobs.errors import JobFileError
from jobs.spec import RULES, JobSpec, read_spec, unknown_key

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True, kw_only=True)
class LoadedJob:
    """A checked job and where it came from; `workload` is the file that travels with it."""

    file: str
    spec: JobSpec
    workload: Path | None


def recipe_names() -> list[str]:
    """Return the names that `yard submit` knows without a file."""
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def has_smoke(recipe: str) -> bool:
    """Tell whether a recipe has a smaller size. Raises JobFileError when its file cannot be read."""
    raw, problems = _read(find(recipe))
    if problems:
        raise JobFileError(recipe, problems)
    return raw.get("smoke") is not None


def load_job(
    job: str, overrides: Mapping[str, Any], env: Mapping[str, str], args: Sequence[str], *, smoke: bool = False
) -> LoadedJob:
    """Read a recipe or job file and lay `overrides`, `env` and further `args` over it. Raises JobFileError.

    `smoke`: its smallest size instead, which the file's section `smoke` makes of it by replacing keys.
    """
    path = find(job)
    raw, problems = _read(path)
    small = raw.pop("smoke", None)
    problems += _smoke_problems(small, wanted=smoke)
    if problems:
        raise JobFileError(job, problems)
    if smoke:
        raw = {key: value for key, value in {**raw, **small}.items() if value is not None or key not in small}
    raw.update(overrides)
    if env and isinstance(raw.get("env", {}), dict):
        raw["env"] = {**raw.get("env", {}), **env}
    if args and isinstance(raw.get("args", []), list):
        raw["args"] = [*raw.get("args", []), *args]
    workload = _workload_file(raw.get("workload"), path.parent)
    spec, problems = read_spec(raw)
    problems += combination_problems(raw, workload)
    problems += _place_problems(workload, path.parent)
    if spec is None or problems:
        raise JobFileError(job, problems)
    return LoadedJob(file=job, spec=spec, workload=workload)


def find(job: str) -> Path:
    """Return the file of a recipe name or path. Raises JobFileError when there is none."""
    is_path = "/" in job or job.endswith((".yaml", ".yml"))
    path = Path(job) if is_path else RECIPES / f"{job}.yaml"
    if path.is_file():
        return path
    rule = "there is no such file" if is_path else "there is no recipe of this name"
    fix = f"give a path to a .yaml file or one of: {', '.join(recipe_names())}"
    raise JobFileError(job, [Problem(path="(file)", rule=rule, fix=fix)])


def _smoke_problems(small: Any, *, wanted: bool) -> list[Problem]:
    if small is None:
        fix = "leave --smoke out, or give the file a section `smoke`"
        return [Problem(path="smoke", rule="this job has no smaller size", fix=fix)] if wanted else []
    if not isinstance(small, dict):
        return [Problem(path="smoke", rule="must be a section of keys of a job", fix="for example `smoke: {nodes: 1}`")]
    return [unknown_key(str(key), "smoke.") for key in small if key not in RULES]


def _read(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    try:
        tree = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}" if mark else "(file)"
        what = getattr(error, "problem", None) or type(error).__name__
        return {}, [Problem(path=line, rule=f"is not valid YAML ({what})", fix="correct the line; indent with spaces")]
    if not isinstance(tree, yaml.MappingNode):
        return {}, [Problem(path="(file)", rule="must be `key: value` lines", fix="start with `name: ...`")]
    twice = _duplicates(tree, "")
    if twice:
        return {}, twice
    loaded: dict[str, Any] = yaml.safe_load(path.read_text())
    return loaded, []


def _duplicates(node: yaml.Node, at: str) -> list[Problem]:
    if not isinstance(node, yaml.MappingNode):
        return []
    seen: set[str] = set()
    problems: list[Problem] = []
    for key, value in node.value:
        name = str(key.value)
        path = f"{at}.{name}" if at else name
        if name in seen:
            line = key.start_mark.line + 1
            problems.append(Problem(path=path, rule=f"is given twice, again in line {line}", fix="remove one of them"))
        seen.add(name)
        problems += _duplicates(value, path)
    return problems


def _place_problems(workload: Path | None, beside: Path) -> list[Problem]:
    """A job file from somebody else must not upload any file of this computer, a private key for example."""
    if workload is None:
        return []
    allowed = [folder.resolve() for folder in (WORKLOADS, beside, Path.cwd())]
    if any(workload.resolve().is_relative_to(folder) for folder in allowed):
        return []
    rule = f"'{workload}' is neither below the folder of the job file nor below the current directory"
    return [Problem(path="workload", rule=rule, fix="move the file, or run yard in a folder above it")]


def _workload_file(workload: Any, beside: Path) -> Path | None:
    if not isinstance(workload, str) or not workload:
        return None
    shipped = WORKLOADS / workload
    path = beside / workload if "/" in workload or not shipped.is_file() else shipped
    return path if path.is_file() else None
