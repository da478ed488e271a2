"""Rules for combinations of keys in a job file. Rules that depend on the cluster are in placement.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainyard.errors import Problem
from yard.environments.definition import NO_ENVIRONMENT
from yard.job.array import INDEX
from yard.job.container import RUNTIMES
from yard.job.launcher import LAUNCHERS, Launcher, Source, Tasks, launcher
from yard.job.rules import OWN_FILES, variables

WORKLOADS = Path(__file__).parent.parent / "workloads"


def combination_problems(raw: Mapping[str, Any], workload: Path | None) -> Iterator[Problem]:
    """Yield the problems in a parsed job file. `workload`: the path to the workload, or None if there is no file."""
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
    if raw.get("array") is None:
        yield from _index_problems(raw)
    secrets, env = raw.get("secrets"), raw.get("env")
    if isinstance(secrets, list) and isinstance(env, dict):
        for name in env:
            if name in secrets:
                yield Problem(path=f"env.{name}", rule="is also listed in `secrets`", fix="remove it from `env`")


def shipped_workloads() -> list[str]:
    """Return the names of the programs in yard/workloads. Files named NAME_*.py are modules of NAME.py."""
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
    yield from _container_problems(raw.get("container"), name, chosen)
    if raw.get("secrets") is not None and chosen.tasks is Tasks.FIRST:
        rule = f"{name} passes the environment of its ranks as arguments, which other users can read"
        yield Problem(path="secrets", rule=rule, fix="use launcher srun, torchrun or deepspeed-no-ssh")
    fewest, most = raw.get("min_nodes"), raw.get("nodes", 1)
    if fewest is not None and not chosen.elastic:
        elastic = ", ".join(other for other in LAUNCHERS if launcher(other).elastic)
        yield Problem(path="min_nodes", rule=f"{name} cannot continue with fewer nodes", fix=f"use launcher {elastic}")
    elif isinstance(fewest, int) and isinstance(most, int) and fewest > most:
        yield Problem(path="min_nodes", rule=f"must not exceed `nodes` ({most})", fix=f"use {most} or fewer")


def _container_problems(container: Any, name: str, chosen: Launcher) -> Iterator[Problem]:
    runtime = container.get("runtime") if isinstance(container, dict) else None
    if runtime in RUNTIMES and runtime not in chosen.runtimes:
        fix = " or ".join([*sorted(chosen.runtimes), "launcher torchrun, srun or deepspeed-no-ssh"])
        yield Problem(path="container.runtime", rule=f"{name} does not support {runtime}", fix=f"use {fix}")
