"""Rules for single values in a job file. loader.py contains the rules for combinations of keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NoReturn

from trainyard.errors import JobFileError, Problem

PROVIDED = (
    "JOB_NAME",
    "RUN_DIR",
    "CHECKPOINT_DIR",
    "RESTART_COUNT",
    "NNODES",
    "NODE_IPS",
    "NODE_IP",
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
    "ARRAY_INDEX",
)
"""Environment variables that are set for every rank, and ARRAY_INDEX, which is set in arrays. `args` and `env` may
contain them as $NAME."""

_VARIABLE = re.compile(r"\$(?:\{(\w*)\}|(\w+))")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
_SPAN = re.compile(r"(\d{1,6})([smhd])")
RUN_DIR = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}$")
"""The end of every run folder's name: the time of submission and a random token."""
ENVIRONMENT_FILE = "environment"
"""The file in a run folder that contains the path of the job's Python environment."""
SHARED_SCRIPT = "yard.sh"
"""The file in a run folder that contains the shell code shared by all jobs."""
OWN_FILES = frozenset(
    {SHARED_SCRIPT, "job.sbatch", "job.sh", "job.log", "job.json", "run.sh", "setup.sh", "secrets.sh"}
    | {"state.json", "hostfile", "events", "runner", "code", "submit.sh", "snapshot.json", "snapshot.diff"}
    | {ENVIRONMENT_FILE, "venv", "run-id"}
)
"""The names of the files that yard writes to a run folder."""

Rule = Callable[[Any], Iterator[Problem]]
"""A function that yields the problems in a YAML value. Each problem's path is relative to the value."""


def refuse(file: str, path: str, rule: str, fix: str) -> NoReturn:
    """Raise JobFileError with a single problem."""
    raise JobFileError(file, [Problem(path=path, rule=rule, fix=fix)])


def variables(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and name of each $NAME and ${NAME} in `text`."""
    for match in _VARIABLE.finditer(text):
        yield match.start(), match.end(), match[1] if match[1] is not None else match[2]


def parse_seconds(text: str) -> int | None:
    """Return a duration such as '90s', '30m', '2h', '3d', 'HH:MM:SS' or 'D-HH:MM:SS' in seconds, or None if invalid."""
    if span := _SPAN.fullmatch(text):
        return int(span[1]) * _SECONDS[span[2]]
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return None


def under(path: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems in the value at `path`, with their complete paths."""
    for problem in problems:
        dot = "." if problem.path and not problem.path.startswith("[") else ""
        yield replace(problem, path=f"{path}{dot}{problem.path}")


def _required(holds: Callable[[Any], bool], rule: str, fix: str) -> Rule:
    def check(value: Any) -> Iterator[Problem]:
        if not holds(value):
            yield Problem(path="", rule=rule, fix=fix)

    return check


def text_like(pattern: str, rule: str, fix: str) -> Rule:
    """Return a rule for text that matches `pattern`."""
    return _required(lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)), rule, fix)


def whole(low: int, high: int) -> Rule:
    """Return a rule for whole numbers from `low` to `high`."""
    rule, fix = f"must be a whole number from {low} to {high}", f"for example {max(low, 2)}"
    return _required(lambda value: type(value) is int and low <= value <= high, rule, fix)


def one_of(choices: Sequence[str]) -> Rule:
    """Return a rule for one of several texts."""

    def check(value: Any) -> Iterator[Problem]:
        if value not in choices:
            near = get_close_matches(str(value), choices, n=1)
            fix = f"write '{near[0]}'" if near else "choose one of them"
            yield Problem(path="", rule=f"must be {', '.join(choices[:-1])} or {choices[-1]}", fix=fix)

    return check


def duration(shortest: int, why: str) -> Rule:
    """Return a rule for durations of at least `shortest` seconds. `why` explains the minimum."""
    fix = "write it in quotes, for example '30m', '2h', '3d' or '02:30:00'"

    def check(value: Any) -> Iterator[Problem]:
        seconds = parse_seconds(value) if isinstance(value, str) else None
        if seconds is None:
            yield Problem(path="", rule="must be a duration", fix=fix)
        elif seconds < shortest:
            yield Problem(path="", rule=f"must be at least {shortest} s: {why}", fix=fix)

    return check


def list_of(item_rule: Rule, example: str) -> Rule:
    """Return a rule for lists whose items follow `item_rule`."""

    def check(value: Any) -> Iterator[Problem]:
        if not isinstance(value, list):
            yield Problem(path="", rule="must be a list", fix=f"for example `{example}`")
            return
        for index, item in enumerate(value):
            yield from under(f"[{index}]", item_rule(item))

    return check


def word(value: Any) -> Iterator[Problem]:
    """Check a string or number, which may contain only variables that are in PROVIDED."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        yield Problem(path="", rule="must be text or a number", fix="put the value in quotes")
        return
    if "\0" in str(value):
        yield Problem(path="", rule="must not contain a NUL byte", fix="remove it")
    for _, _, name in variables(str(value)):
        if name not in PROVIDED:
            fix = f"use one of {', '.join(PROVIDED)}, or use `run`"
            yield Problem(path="", rule=f"yard does not set the variable ${name}", fix=fix)


def environment(value: Any) -> Iterator[Problem]:
    """Check a mapping of environment variables."""
    if not isinstance(value, dict):
        fix = "for example `env: {OMP_NUM_THREADS: 1}`"
        yield Problem(path="", rule="must be a mapping from names to values", fix=fix)
        return
    for name, text in value.items():
        yield from under(str(name), _variable_name(name))
        yield from under(str(name), word(text))


def secret_names(value: Any) -> Iterator[Problem]:
    """Check a list of environment variables' names, which must be unique."""
    if not isinstance(value, list) or not value:
        fix = "for example `secrets: [HF_TOKEN]`"
        yield Problem(path="", rule="must be a list of environment variable names", fix=fix)
        return
    for index, name in enumerate(value):
        yield from under(f"[{index}]", _variable_name(name))
        if name in value[:index]:
            yield Problem(path=f"[{index}]", rule="is listed twice", fix="remove one of them")


def _variable_name(name: Any) -> Iterator[Problem]:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        rule = "must be the name of an environment variable"
        yield Problem(path="", rule=rule, fix="use letters, digits and _, and no digit at the start")
    elif name in PROVIDED:
        yield Problem(path="", rule="is set by yard", fix="choose another name, or remove it")
    elif name.startswith(("SLURM_", "BASH_")):
        yield Problem(path="", rule="is reserved by the scheduler or the shell", fix="remove it")


def texts(value: Any) -> Iterator[Problem]:
    """Check a mapping from file names to contents."""
    if not isinstance(value, dict) or not value:
        fix = "for example `files: {ds.json: '{}'}`"
        yield Problem(path="", rule="must be a mapping from file names to text", fix=fix)
        return
    for name, text in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,80}", name):
            rule = "must be a file name that contains only letters, digits, '.', '_' and '-'"
            yield Problem(path=str(name), rule=rule, fix="rename it")
        elif name in OWN_FILES or name.startswith("rank-"):
            yield Problem(path=name, rule="is reserved by yard", fix="choose another name")
        elif not isinstance(text, str):
            yield Problem(path=name, rule="must be text", fix="write it as a block: `|` and indented lines")


def section(rules: Mapping[str, Rule], required: Sequence[str], example: str) -> Rule:
    """Return a rule for a mapping. `rules` contains the rule for each key, and `example` is part of the fix."""

    def check(value: Any) -> Iterator[Problem]:
        if not isinstance(value, dict):
            yield Problem(path="", rule="must be a mapping from keys to values", fix=f"for example `{example}`")
            return
        yield from unknown_keys(value, rules)
        for key in required:
            if key not in value:
                yield Problem(path=key, rule="is required", fix=f"add `{key}: ...`")
        for key, rule in rules.items():
            if key in value and value[key] is None:
                yield Problem(path=key, rule="has no value", fix="add a value, or remove the key")
            elif key in value:
                yield from under(key, rule(value[key]))

    return check


def unknown_keys(keys: Iterable[Any], known: Iterable[str]) -> Iterator[Problem]:
    """Yield a problem for each unknown key."""
    names = list(known)
    for key in keys:
        if key not in names:
            near = get_close_matches(str(key), names, n=1)
            fix = f"write '{near[0]}'" if near else f"remove it; known keys: {', '.join(names)}"
            yield Problem(path=str(key), rule="is not a known key", fix=fix)
