"""Reads and checks recipes and job files. placement.py contains the checks that depend on the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from trainyard.errors import JobFileError, Problem
from trainyard.strict_yaml import YamlError, load_strict
from yard.environments.definition import NO_ENVIRONMENT, ChosenEnvironment, Definition, included, is_file, own_file
from yard.environments.packages import EXAMPLE, is_path
from yard.job.launcher import LAUNCHERS, Launcher, Source, Tasks, launcher
from yard.job.spec import (
    INDEX,
    OWN_FILES,
    RULES,
    RUNTIMES,
    JobSpec,
    job_rule,
    read_spec,
    refuse,
    under,
    unknown_keys,
    variables,
)
from yard.tree.files import looks_secret

WORKLOADS = Path(__file__).parent.parent / "workloads"
RECIPES = Path(__file__).parent / "recipes"


def _combination_problems(raw: Mapping[str, Any], workload: Path | None) -> Iterator[Problem]:
    given = [source for source in Source if raw.get(source) is not None]
    yield from _source_problems(raw, given, workload)
    name = raw.get("launcher", "srun")
    if name in LAUNCHERS:
        yield from _launcher_problems(raw, given, name, launcher(name))
    if isinstance(raw.get("chain"), int) and raw["chain"] > 1 and raw.get("checkpoint_dir") is None:
        rule = "without `checkpoint_dir`, every job in a chain starts from the beginning"
        yield Problem(path="chain", rule=rule, fix="set checkpoint_dir")
    if raw.get("container") is not None and raw.get("environment") not in (None, NO_ENVIRONMENT):
        rule = "a container has its own Python packages, so `environment` would not be used"
        yield Problem(path="environment", rule=rule, fix="remove `environment` or `container`")
    if raw.get("container") is not None and raw.get("with") is not None:
        rule = "a container has its own Python packages, so `with` would not be used"
        yield Problem(path="with", rule=rule, fix="install the packages in `setup`, or remove `container`")
    if raw.get("group") is not None and raw.get("groups") is not None:
        rule = "only one of `group` and `groups` is allowed"
        yield Problem(path="groups", rule=rule, fix="remove one of them; --group replaces both")
    if raw.get("array") is None:
        yield from _index_problems(raw)
    secrets, env = raw.get("secrets"), raw.get("env")
    if isinstance(secrets, list) and isinstance(env, dict):
        for name in env:
            if name in secrets:
                yield Problem(path=f"env.{name}", rule="is also listed in `secrets`", fix="remove it from `env`")


def shipped_workloads() -> list[str]:
    """Return the names of the programs in yard/workloads. Files named PROGRAM_*.py are modules, not programs."""
    stems = sorted(path.stem for path in WORKLOADS.glob("[a-z]*.py"))
    return [f"{stem}.py" for stem in stems if not any(stem.startswith(f"{other}_") for other in stems)]


def _source_problems(raw: Mapping[str, Any], given: list[Source], workload: Path | None) -> Iterator[Problem]:
    if len(given) > 1:
        rule = "only one of `workload`, `script` and `run` is allowed"
        yield Problem(path=given[-1], rule=rule, fix="remove the others")
    if not given:
        fix = "add `run: echo hello` or `workload: allreduce.py`"
        yield Problem(path="(file)", rule="a job needs `workload`, `script` or `run`", fix=fix)
    named = raw.get("workload")
    if isinstance(named, str) and named and workload is None:
        fix = f"use a path relative to the job file, or one of: {', '.join(shipped_workloads())}"
        yield Problem(path="workload", rule=f"file '{named}' does not exist", fix=fix)
    if workload is not None and isinstance(raw.get("files"), dict) and workload.name in raw["files"]:
        yield Problem(path=f"files.{workload.name}", rule="is the name of the workload", fix="choose another name")
    if workload is not None and workload.name in OWN_FILES:
        yield Problem(path="workload", rule=f"{workload.name} is reserved by yard", fix="rename the file")


def _index_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    env, args = raw.get("env"), raw.get("args")
    values = [(f"args[{at}]", value) for at, value in enumerate(args if isinstance(args, list) else ())]
    values += [(f"env.{name}", value) for name, value in (env if isinstance(env, dict) else {}).items()]
    for path, value in values:
        if any(name == INDEX for _, _, name in variables(str(value))):
            yield Problem(path=path, rule=f"${INDEX} is set only in arrays", fix="set `array`, or remove the variable")


def _launcher_problems(raw: Mapping[str, Any], given: list[Source], name: str, chosen: Launcher) -> Iterator[Problem]:
    if len(given) == 1 and given[0] not in chosen.starts:
        could = " or ".join(f"`{source}`" for source in Source if source in chosen.starts)
        kind = "Python files, not shell commands" if given[0] is Source.RUN else "only scripts on the cluster"
        fix = f"use {could}, or launcher srun"
        yield Problem(path="launcher", rule=f"{name} runs {kind}", fix=fix)
    if chosen.starts == {Source.SCRIPT} and raw.get("workdir") is None and raw.get("code") is None:
        yield Problem(path="workdir", rule=f"{name} needs a checkout on the cluster", fix="set it to that folder")
    container = raw.get("container")
    runtime = container.get("runtime") if isinstance(container, dict) else None
    if runtime in RUNTIMES and runtime not in chosen.runtimes:
        fix = " or ".join([*sorted(chosen.runtimes), "launcher torchrun, srun or deepspeed-no-ssh"])
        yield Problem(path="container.runtime", rule=f"{name} does not support {runtime}", fix=f"use {fix}")
    if raw.get("secrets") is not None and chosen.tasks is Tasks.FIRST:
        rule = f"{name} passes the environment of its ranks as arguments, which other users can read"
        yield Problem(path="secrets", rule=rule, fix="use launcher srun, torchrun or deepspeed-no-ssh")
    fewest, most = raw.get("min_nodes"), raw.get("nodes", 1)
    if fewest is not None and not chosen.elastic:
        elastic = ", ".join(other for other in LAUNCHERS if launcher(other).elastic)
        yield Problem(path="min_nodes", rule=f"{name} cannot continue with fewer nodes", fix=f"use launcher {elastic}")
    elif isinstance(fewest, int) and isinstance(most, int) and fewest > most:
        yield Problem(path="min_nodes", rule=f"must not exceed `nodes` ({most})", fix=f"use {most} or fewer")


@dataclass(frozen=True, kw_only=True)
class LoadedJob:
    """A checked job, from the recipe or job file `file`."""

    file: str
    spec: JobSpec
    launcher: Launcher
    workload: Path | None
    """The file to upload."""
    code: Path | None = None
    """The directory to upload."""
    environment: Definition | None = None
    packages: Sequence[str] = ()
    """The packages that are added to the environment. Paths are absolute."""
    element: int | None = None
    """The job's number in an array."""


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def has_smoke(recipe: str) -> bool:
    return _read(find(recipe))[0].get("smoke") is not None


def load_job(
    job: str, overrides: Mapping[str, Any], env: Mapping[str, str], args: Sequence[str], *, smoke: bool = False
) -> LoadedJob:
    """Load and check a recipe or job file. Raises JobFileError, which lists all problems.

    `overrides` and `env` replace values from the file, and `args` are appended to its arguments. If `smoke` is set, the
    file's `smoke` section also replaces the values of keys. A key that has no value in this section is removed.
    """
    path = find(job)
    raw, problems = _read(path)
    small = raw.pop("smoke", None)
    problems += _smoke_problems(small, wanted=smoke)
    if smoke and isinstance(small, dict):
        raw = {key: value for key, value in {**raw, **small}.items() if value is not None or key not in small}
    if "group" in overrides:
        raw.pop("groups", None)
    checked = None
    if raw or not problems:
        try:
            checked = check_job(job, path.parent, {**raw, **overrides}, env, args)
        except JobFileError as error:
            problems += error.problems
    if problems or checked is None:
        raise JobFileError(job, problems)
    return checked


def check_job(
    file: str, beside: Path, keys: Mapping[str, Any], env: Mapping[str, str], args: Sequence[str]
) -> LoadedJob:
    """Check a job's keys, and return the job. Raises JobFileError, which lists all problems and names `file`.

    Paths in the keys are relative to the folder `beside`. `env` and `args` are added to the keys of the same names.
    """
    raw = dict(keys)
    if env and isinstance(raw.get("env", {}), dict):
        raw["env"] = {**raw.get("env", {}), **env}
    if args and isinstance(raw.get("args", []), list):
        raw["args"] = [*raw.get("args", []), *args]
    workload = _workload_file(raw.get("workload"), beside)
    code = beside / raw["code"] if isinstance(raw.get("code"), str) else None
    problems = [*job_rule(raw), *_combination_problems(raw, workload)]
    problems += [*_folder_problems("workload", workload, beside), *_code_problems(raw, code, beside)]
    if problems:
        raise JobFileError(file, problems)
    spec = read_spec(raw)
    environment = definition_for(file, spec.environment, beside)
    return LoadedJob(
        file=file,
        spec=spec,
        launcher=launcher(spec.launcher),
        workload=workload,
        code=code,
        environment=environment,
        packages=packages_for(file, spec.packages, beside),
    )


def definition_for(file: str, chosen: ChosenEnvironment | None, beside: Path) -> Definition | None:
    """Return a job's environment, if it has one. The path of a requirements file is relative to `beside`."""
    if chosen is None:
        return None
    if not is_file(chosen.name):
        return included(chosen.name)
    path = beside / chosen.name
    found, problems = own_file(path)
    problems += _folder_problems("environment", path, beside)
    if problems:
        raise JobFileError(file, problems)
    return found


def packages_for(file: str, packages: Sequence[str], beside: Path) -> tuple[str, ...]:
    """Return the packages that are added to an environment, with absolute paths. They are relative to `beside`."""
    paths = {package: (beside / package).absolute() for package in packages if is_path(package)}
    problems: list[Problem] = []
    for path in paths.values():
        if not path.exists():
            problems.append(Problem(path="with", rule=f"'{path}' does not exist", fix=f"for example {EXAMPLE}"))
        problems += _folder_problems("with", path, beside)
    if problems:
        raise JobFileError(file, problems)
    return tuple(str(paths.get(package, package)) for package in packages)


def environment_of(job: str, settings: Sequence[str]) -> dict[str, str]:
    """Return the environment variables that KEY=VALUE settings define. Raises JobFileError if one is invalid."""
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals or not name:
            rule = f"'{name}{equals}' is not KEY=VALUE"
            refuse(job, "--set", rule, "for example --set OMP_NUM_THREADS=2")
    return {name: value for name, _, value in pairs}


def find(job: str) -> Path:
    """Return the path to a recipe or job file. Raises JobFileError if it does not exist."""
    is_path = "/" in job or Path(job).suffix in {".yaml", ".yml", ".py", ".sbatch", ".slurm", ".sh"}
    path = Path(job) if is_path else RECIPES / f"{job}.yaml"
    if path.is_file():
        return path
    rule = "file not found" if is_path else "recipe not found"
    names = [str(file) for file in path.parent.glob(f"*{path.suffix}")] if is_path else recipe_names()
    near = get_close_matches(str(Path(job)), names, n=1)
    fix = f"use a path to a .yaml, .py or .sbatch file, or one of: {', '.join(recipe_names())}"
    refuse(job, "(file)", rule, f"write {near[0]}" if near else fix)


def _smoke_problems(small: Any, *, wanted: bool) -> list[Problem]:
    if small is None:
        fix = "omit --smoke, or add a section `smoke` to the file"
        return [Problem(path="smoke", rule="this job has no smoke size", fix=fix)] if wanted else []
    if not isinstance(small, dict):
        return [Problem(path="smoke", rule="must be a mapping of job keys", fix="for example `smoke: {nodes: 1}`")]
    return list(under("smoke", unknown_keys(small, RULES)))


def _read(path: Path) -> tuple[dict[str, Any], list[Problem]]:
    try:
        document = load_strict(path.read_text())
    except YamlError as error:
        fix = "correct the line; indent with spaces"
        return {}, [Problem(path=f"line {error.line}", rule=f"is not valid YAML ({error.reason})", fix=fix)]
    except (UnicodeDecodeError, OSError) as error:
        rule = f"cannot be read ({type(error).__name__})"
        return {}, [Problem(path="(file)", rule=rule, fix="use a readable YAML file")]
    if not isinstance(document.value, dict):
        return {}, [Problem(path="(file)", rule="must be `key: value` lines", fix="start with `name: ...`")]
    repeated = [
        Problem(path=".".join(keys), rule=f"is a duplicate key (line {line})", fix="remove one of them")
        for keys, line in document.repeated
    ]
    return document.value, repeated


def _folder_problems(key: str, path: Path | None, beside: Path) -> list[Problem]:
    """Check the location of a file or folder before sending it. Another person's job file could name a private key."""
    if path is None:
        return []
    allowed = [folder.resolve() for folder in (WORKLOADS, beside, Path.cwd())]
    inside = [path.resolve().relative_to(folder) for folder in allowed if path.resolve().is_relative_to(folder)]
    if not inside:
        rule = f"'{path}' is in neither the job file's folder nor the current directory"
        return [Problem(path=key, rule=rule, fix="move the file, or run yard in a folder above it")]
    # Users often run commands in their home directory, which contains keys in hidden folders.
    shortest = min(inside, key=lambda found: len(found.parts))
    if looks_secret(path.resolve().name) or any(part.startswith(".") for part in shortest.parts):
        rule = f"'{path}' is hidden or has the name of a file with keys, which is never sent"
        return [Problem(path=key, rule=rule, fix="rename or move the file if it contains no secret")]
    return []


def _code_problems(raw: Mapping[str, Any], code: Path | None, beside: Path) -> list[Problem]:
    if code is None:
        return []
    if not code.is_dir():
        rule = f"directory '{code}' does not exist"
        return [Problem(path="code", rule=rule, fix="use a path relative to the job file, for example `code: .`")]
    if holds_home(code):
        rule = f"'{code.resolve()}' is or contains your home directory, which is never sent"
        fix = "move the program to a directory of its own, or add --no-code to send only the program"
        return [Problem(path="code", rule=rule, fix=fix)]
    script = raw.get("script")
    if isinstance(script, str) and raw.get("workdir") is None:
        if not (code / script).is_file():
            rule = f"file '{script}' does not exist in '{code}'"
            return [Problem(path="script", rule=rule, fix="use a path relative to `code`")]
        if not (code / script).resolve().is_relative_to(code.resolve()):
            rule = f"file '{script}' is outside '{code}'"
            return [Problem(path="script", rule=rule, fix="move the file into `code`")]
    return _folder_problems("code", code, beside)


def holds_home(folder: Path) -> bool:
    """Return whether a directory is the home directory or contains it."""
    home = Path.home().resolve()
    return folder.resolve() in (home, *home.parents)


def _workload_file(workload: Any, beside: Path) -> Path | None:
    if not isinstance(workload, str) or not workload:
        return None
    own, shipped = beside / workload, WORKLOADS / workload
    if own.is_file():
        return own
    return shipped if "/" not in workload and shipped.is_file() else None


def describe(name: str) -> dict[str, Any]:
    """Return a recipe's properties. Raises JobFileError if it does not exist."""
    spec = load_job(name, {}, {}, []).spec
    return {
        "name": name,
        "about": spec.about,
        "nodes": spec.nodes,
        "launcher": spec.launcher,
        "container": spec.runtime or None,
        "environment": None if spec.environment is None else spec.environment.name,
        "software": spec.software,
        "smoke": has_smoke(name),
        "verified": spec.verified,
        "unverified": spec.unverified,
    }
