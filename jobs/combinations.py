"""What keys of a job must hold together, once each is looked at by itself. Pure; placement.py knows the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from components.errors import Problem
from jobs.container import RUNTIMES
from jobs.launcher import LAUNCHERS, Launcher, Source, Tasks, launcher

WORKLOADS = Path(__file__).parent / "workloads"
_SOURCES = tuple(Source)


def combination_problems(raw: Mapping[str, Any], workload: Path | None) -> list[Problem]:
    """Return what is wrong between the keys of a job, as YAML gave them. `workload`: its file, if there is one."""
    problems = [*_source_problems(raw, workload)]
    name = raw.get("launcher", "srun")
    if name in LAUNCHERS:
        problems += _launcher_problems(raw, str(name), launcher(str(name)))
    if isinstance(raw.get("chain"), int) and raw["chain"] > 1 and raw.get("checkpoint_dir") is None:
        fix = "set checkpoint_dir"
        problems.append(Problem(path="chain", rule="every job of a chain would start from the beginning", fix=fix))
    problems += _secret_problems(raw)
    return problems


def _secret_problems(raw: Mapping[str, Any]) -> Iterator[Problem]:
    secrets, env = raw.get("secrets"), raw.get("env")
    if isinstance(secrets, list) and isinstance(env, dict):
        for name in secrets:
            if name in env:
                yield Problem(path=f"env.{name}", rule="is in `secrets` as well", fix="remove it from `env`")


def _source_problems(raw: Mapping[str, Any], workload: Path | None) -> Iterator[Problem]:
    given = [source.value for source in _SOURCES if raw.get(source.value) is not None]
    if len(given) > 1:
        rule = "a job has one of `workload`, `script` and `run`, not several"
        yield Problem(path=given[-1], rule=rule, fix="remove the others")
    if not given:
        fix = "add `run: echo hello` or `workload: allreduce.py`"
        yield Problem(path="(file)", rule="a job needs `workload`, `script` or `run`", fix=fix)
    named = raw.get("workload")
    if isinstance(named, str) and named and workload is None:
        shipped = ", ".join(sorted(path.name for path in WORKLOADS.glob("[a-z]*.py")))
        fix = f"give a path relative to the job file, or one of: {shipped}"
        yield Problem(path="workload", rule=f"there is no file '{named}'", fix=fix)
    if workload is not None and isinstance(raw.get("files"), dict) and workload.name in raw["files"]:
        yield Problem(path=f"files.{workload.name}", rule="is the workload's own name", fix="choose another name")


def _launcher_problems(raw: Mapping[str, Any], name: str, chosen: Launcher) -> Iterator[Problem]:
    given = [source for source in _SOURCES if raw.get(source.value) is not None]
    if len(given) == 1 and given[0] not in chosen.starts:
        could = " or ".join(f"`{source.value}`" for source in _SOURCES if source in chosen.starts)
        what = "a Python file, not shell lines" if given[0] is Source.RUN else "a script that lies on the cluster"
        fix = f"use {could}, or launcher srun"
        yield Problem(path="launcher", rule=f"{name} starts {what}", fix=fix)
    if chosen.starts == {Source.SCRIPT} and raw.get("workdir") is None:
        yield Problem(path="workdir", rule=f"{name} runs in a checkout on the cluster", fix="name its folder")
    yield from _container_problems(raw.get("container"), name, chosen)
    if raw.get("secrets") is not None and chosen.tasks is Tasks.FIRST:
        # These launchers put the environment of remote ranks on a command line, which every user of a node can read.
        rule = f"{name} passes the environment of its ranks as arguments, which other users can read"
        yield Problem(path="secrets", rule=rule, fix="use launcher srun, torchrun or deepspeed-no-ssh")
    fewest, most = raw.get("min_nodes"), raw.get("nodes", 1)
    if fewest is not None and not chosen.elastic:
        elastic = ", ".join(other for other in LAUNCHERS if launcher(other).elastic)
        yield Problem(path="min_nodes", rule=f"{name} cannot go on with fewer nodes", fix=f"use launcher {elastic}")
    elif isinstance(fewest, int) and isinstance(most, int) and fewest > most:
        yield Problem(path="min_nodes", rule=f"must not be more than nodes, {most}", fix=f"use {most} or fewer")


def _container_problems(container: Any, name: str, chosen: Launcher) -> Iterator[Problem]:
    runtime = container.get("runtime") if isinstance(container, dict) else None
    if runtime not in RUNTIMES or runtime in chosen.runtimes:
        return
    if chosen.runtimes:
        rule, fix = f"{name} cannot start its ranks in {runtime}", f"use {' or '.join(sorted(chosen.runtimes))}"
    else:
        rule, fix = f"{name} starts its ranks outside of containers", "use launcher torchrun, srun or deepspeed-no-ssh"
    yield Problem(path="container.runtime", rule=rule, fix=fix)
