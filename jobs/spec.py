"""JobSpec: what a person writes in a job file, and the rule of every key. Pure; loader.py reads the file.

Plain dataclasses and functions: `yard submit` must answer at once, and importing pydantic alone takes longer than all
the rest of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from components.errors import Problem

PROVIDED = (
    "JOB_NAME",
    "RUN_DIR",
    "CHECKPOINT_DIR",
    "RESTART_COUNT",
    "NNODES",
    "NODE_IPS",
    "NODE_RANK",
    "GPUS_PER_NODE",
    "TASKS_PER_NODE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "HOSTFILE",
    "MPI_HOSTFILE",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "BUSBW_FLOOR",
)
"""The environment every rank gets, the same under every launcher. `args` and `env` may refer to it as $NAME."""

LAUNCHERS = ("srun", "torchrun")

_VARIABLE = re.compile(r"\$(?:\{(\w*)\}|(\w+))")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
_SPAN = re.compile(r"(\d{1,6})([smhd])")
_SHORTEST = 60


class Broken(Exception):
    """A value that breaks rules: (place within the value, rule, fix) of each."""

    def __init__(self, *parts: tuple[str, str, str]) -> None:
        super().__init__(*parts)
        self.parts = parts


def variables(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, name) of every $NAME and ${NAME} in `text`."""
    for match in _VARIABLE.finditer(text):
        yield match.start(), match.end(), match[1] if match[1] is not None else match[2]


def parse_seconds(text: str) -> int | None:
    """Return a duration in seconds: '90s', '30m', '2h', '3d', 'HH:MM:SS' or 'D-HH:MM:SS'. None: it is none."""
    if span := _SPAN.fullmatch(text):
        return int(span[1]) * _SECONDS[span[2]]
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return None


Rule = Callable[[Any], Any]
"""Takes a key's value as YAML gave it and returns it as JobSpec keeps it. Raises Broken."""


def _text(pattern: str, rule: str, fix: str) -> Rule:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise Broken(("", rule, fix))
        return value

    return check


def _whole(low: int, high: int) -> Rule:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Broken(("", f"must be a whole number from {low} to {high}", f"for example {max(low, 2)}"))
        return value

    return check


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Broken(("", "must be text or a number", "put the value in quotes"))
    text = str(value)
    if "\0" in text:
        raise Broken(("", "must not hold a NUL byte", "remove it"))
    for _, _, name in variables(text):
        if name not in PROVIDED:
            raise Broken(
                ("", f"${name} is not a variable that yard sets", f"use one of {', '.join(PROVIDED)}, or `run`")
            )
    return text


def _words(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise Broken(("", "must be a list", "for example `[--steps, 20]`"))
    kept, parts = _each({f"[{index}]": item for index, item in enumerate(value)})
    if parts:
        raise Broken(*parts)
    return tuple(kept.values())


def _environment(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Broken(("", "must be a section of KEY: value lines", "for example `env: {OMP_NUM_THREADS: 1}`"))
    names = [(f".{name}", *trouble) for name in value if (trouble := _name_trouble(name))]
    kept, parts = _each({f".{name}": item for name, item in value.items()})
    if names or parts:
        raise Broken(*names, *parts)
    return {name[1:]: text for name, text in kept.items()}


def _each(items: Mapping[str, Any]) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    kept: dict[str, str] = {}
    parts: list[tuple[str, str, str]] = []
    for place, item in items.items():
        try:
            kept[place] = _word(item)
        except Broken as broken:
            parts += [(place, rule, fix) for _, rule, fix in broken.parts]
    return kept, parts


def _name_trouble(name: Any) -> tuple[str, str] | None:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return "must be the name of an environment variable", "use letters, digits and _ only"
    if name in PROVIDED:
        return "is set by yard itself", "choose another name, or drop it"
    if name.startswith(("SLURM_", "BASH_")):
        return "belongs to the scheduler or the shell", "drop it"
    return None


def _duration(value: Any) -> str:
    fix = "write it in quotes, for example '30m', '2h', '3d' or '02:30:00'"
    seconds = parse_seconds(value) if isinstance(value, str) else None
    if seconds is None:
        raise Broken(("", "must be a duration", fix))
    if seconds < _SHORTEST:
        raise Broken(("", f"must be {_SHORTEST} s or more: Slurm counts in minutes", fix))
    return str(value)


def _launcher(value: Any) -> str:
    if value not in LAUNCHERS:
        raise Broken(("", f"must be {' or '.join(LAUNCHERS)}", "write one of them"))
    return str(value)


_FOLDER = r"(?!(?:.*/)?\.\.(?:/|$))/?[\w.@+-]+(?:/[\w.@+-]+)*"

RULES: dict[str, Rule] = {
    "name": _text(
        r"[a-z0-9]([a-z0-9._-]{0,38}[a-z0-9])?",
        "must be at most 40 lower-case letters, digits, '.', '_' and '-'",
        "for example 'gpt-small'; a number needs quotes",
    ),
    "nodes": _whole(1, 2000),
    "group": _text(r"\S+", "must be the name of a node group", "`yard nodes` lists them"),
    "gpus_per_node": _whole(0, 64),
    "tasks_per_node": _whole(1, 256),
    "cpus_per_task": _whole(1, 1024),
    "memory_per_node": _text(r"[1-9]\d{0,6}[MG]", "must be a number and M or G", "for example '700M'"),
    "launcher": _launcher,
    "workload": _text(r"(?s).*\S.*", "must be a file", "for example 'allreduce.py'"),
    "args": _words,
    "run": _text(r"(?s).*\S.*", "must be shell lines", "for example `run: echo hello`"),
    "env": _environment,
    "time": _duration,
    "retries": _whole(0, 1000),
    "checkpoint_dir": _text(
        _FOLDER,
        "must be a folder: absolute on the shared file system, or relative to the run folder",
        "for example 'checkpoints' or '/shared/checkpoints/run-7'",
    ),
}


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job. `workload` (a Python file) or `run` (shell lines) is what every rank does."""

    name: str
    nodes: int = 1
    group: str | None = None
    """Node group to run on; None: the first one that is large enough."""
    gpus_per_node: int | None = None
    """None: all that a node of the group has."""
    tasks_per_node: int | None = None
    """Ranks per node; None: one per GPU, or one where there is no real GPU to drive."""
    cpus_per_task: int | None = None
    memory_per_node: str | None = None
    """None: all that Slurm may hand out on the node."""
    launcher: str = "srun"
    workload: str | None = None
    """A file of jobs/workloads/ by name, or a path (relative to the job file)."""
    args: tuple[str, ...] = ()
    run: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    time: str = "1h"
    retries: int = 0
    """How often the job is started again after a failure; a lost node and a full time limit do not count."""
    checkpoint_dir: str | None = None
    """Where the workload keeps checkpoints, relative to the run folder. Set: the time limit is no failure."""

    @property
    def seconds(self) -> int:
        """The time limit."""
        return parse_seconds(self.time) or _SHORTEST


def read_spec(raw: Mapping[Any, Any]) -> tuple[JobSpec | None, list[Problem]]:
    """Check every key of a job. Returns the job, or None with all the problems there are."""
    problems = [_unknown(key) for key in raw if key not in RULES]
    required = [item.name for item in fields(JobSpec) if item.default is MISSING and item.default_factory is MISSING]
    problems += [Problem(path=key, rule="is required", fix=f"add `{key}: ...`") for key in required if key not in raw]
    values: dict[str, Any] = {}
    for key, rule in RULES.items():
        if key not in raw:
            continue
        try:
            if raw[key] is None:
                raise Broken(("", "has no value", "give it one, or remove the line"))
            values[key] = rule(raw[key])
        except Broken as broken:
            problems += [Problem(path=key + place, rule=text, fix=fix) for place, text, fix in broken.parts]
    return (None, problems) if problems else (JobSpec(**values), [])


def _unknown(key: Any) -> Problem:
    near = get_close_matches(str(key), RULES, n=1)
    fix = f"write '{near[0]}'" if near else f"remove it; a job has {', '.join(RULES)}"
    return Problem(path=str(key), rule="is not a key of a job", fix=fix)
