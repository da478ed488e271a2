"""The rules of single values in a job file: each takes what YAML gave and returns what JobSpec keeps. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

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
)
"""The environment every rank gets, the same under every launcher. `args` and `env` may refer to it as $NAME."""

_VARIABLE = re.compile(r"\$(?:\{(\w*)\}|(\w+))")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
_SPAN = re.compile(r"(\d{1,6})([smhd])")
_OWN_FILES = frozenset(
    (
        *("job.sbatch", "job.sh", "job.log", "job.json", "run.sh", "setup.sh", "secrets.sh"),
        *("state.json", "hostfile", "events", "runner"),
    )
)


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


def text_like(pattern: str, rule: str, fix: str) -> Rule:
    """Text that matches all of `pattern`."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise Broken(("", rule, fix))
        return value

    return check


def whole(low: int, high: int) -> Rule:
    """A whole number within bounds."""

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


def one_of(choices: Sequence[str]) -> Rule:
    """One of a few words."""

    def check(value: Any) -> str:
        if value not in choices:
            near = get_close_matches(str(value), choices, n=1)
            fix = f"write '{near[0]}'" if near else "write one of them"
            raise Broken(("", f"must be {', '.join(choices[:-1])} or {choices[-1]}", fix))
        return str(value)

    return check


def words(value: Any) -> tuple[str, ...]:
    """A list of words, which may hold variables that yard sets."""
    if not isinstance(value, list):
        raise Broken(("", "must be a list", "for example `[--steps, 20]`"))
    kept, parts = _each({f"[{index}]": item for index, item in enumerate(value)})
    if parts:
        raise Broken(*parts)
    return tuple(kept.values())


def environment(value: Any) -> dict[str, str]:
    """Environment variables and their values."""
    if not isinstance(value, dict):
        raise Broken(("", "must be a section of KEY: value lines", "for example `env: {OMP_NUM_THREADS: 1}`"))
    names = [(f".{name}", *trouble) for name in value if (trouble := _name_trouble(name))]
    kept, parts = _each({f".{name}": item for name, item in value.items()})
    if names or parts:
        raise Broken(*names, *parts)
    return {name[1:]: text for name, text in kept.items()}


def names(value: Any) -> tuple[str, ...]:
    """A list of names of environment variables, each at most once."""
    if not isinstance(value, list) or not value:
        raise Broken(("", "must be a list of names of environment variables", "for example `secrets: [HF_TOKEN]`"))
    parts = [(f"[{index}]", *trouble) for index, name in enumerate(value) if (trouble := _name_trouble(name))]
    parts += [
        (f"[{index}]", "is listed twice", "remove one of them")
        for index, name in enumerate(value)
        if name in value[:index]
    ]
    if parts:
        raise Broken(*parts)
    return tuple(value)


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


def duration(shortest: int, why: str) -> Rule:
    """A time span of at least `shortest` seconds."""
    fix = "write it in quotes, for example '30m', '2h', '3d' or '02:30:00'"

    def check(value: Any) -> str:
        seconds = parse_seconds(value) if isinstance(value, str) else None
        if seconds is None:
            raise Broken(("", "must be a duration", fix))
        if seconds < shortest:
            raise Broken(("", f"must be {shortest} s or more: {why}", fix))
        return str(value)

    return check


def texts(value: Any) -> dict[str, str]:
    """Small files by name, as text: they travel with the job."""
    example = "for example `files: {ds.json: '{}'}`"
    if not isinstance(value, dict) or not value:
        raise Broken(("", "must be a section of NAME: text", example))
    parts: list[tuple[str, str, str]] = []
    for name, text in value.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,80}", name):
            parts.append((f".{name}", "must be a file name of letters, digits, '.', '_' and '-'", "rename it"))
        elif name in _OWN_FILES or name.startswith("rank-"):
            parts.append((f".{name}", "is a file of yard's own", "choose another name"))
        elif not isinstance(text, str):
            parts.append((f".{name}", "must be text", "write it as a block: `|` and indented lines"))
    if parts:
        raise Broken(*parts)
    return dict(value)


def section(rules: Mapping[str, Rule], required: Sequence[str], example: str) -> Rule:
    """A section of keys, each with its rule."""

    def check(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Broken(("", "must be a section of key: value lines", example))
        known = ", ".join(rules)
        parts = [(f".{key}", "is not a key here", f"remove it; there are {known}") for key in value if key not in rules]
        parts += [(f".{key}", "is required", f"add `{key}: ...`") for key in required if key not in value]
        kept: dict[str, Any] = {}
        for key, rule in rules.items():
            if key in value:
                try:
                    kept[key] = rule(value[key])
                except Broken as broken:
                    parts += [(f".{key}{place}", text, fix) for place, text, fix in broken.parts]
        if parts:
            raise Broken(*parts)
        return kept

    return check
