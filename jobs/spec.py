"""JobSpec: what a person writes in a job file. Pure; loader.py reads the file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

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

_VARIABLE = re.compile(r"\$(?:\{(\w*)\}|(\w+))")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
_SPAN = re.compile(r"(\d{1,6})([smhd])")
_SHORTEST = 60


def broken(rule: str, fix: str) -> PydanticCustomError:
    """Return the error of a broken rule, with its fix, for a validator to raise."""
    return PydanticCustomError("rule", "{rule}", {"rule": rule, "fix": fix})


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


def _word(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise broken("must be text or a number", f"put the value in quotes: '{value}'" if value else "give it a value")
    text = str(value)
    if "\0" in text:
        raise broken("must not hold a NUL byte", "remove it")
    for _, _, name in variables(text):
        if name not in PROVIDED:
            raise broken(f"${name} is not a variable that yard sets", f"use one of {', '.join(PROVIDED)}, or `run`")
    return text


def _variable_name(name: Any) -> str:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise broken("must be the name of an environment variable", "use letters, digits and _ only")
    if name in PROVIDED:
        raise broken(f"{name} is set by yard itself", "choose another name, or drop it")
    if name.startswith(("SLURM_", "BASH_")):
        raise broken(f"{name} belongs to the scheduler or the shell", "drop it")
    return name


def _duration(value: Any) -> str:
    fix = "write it in quotes, for example '30m', '2h', '3d' or '02:30:00'"
    seconds = parse_seconds(value) if isinstance(value, str) else None
    if seconds is None:
        raise broken("must be a duration", fix)
    if seconds < _SHORTEST:
        raise broken(f"must be {_SHORTEST} s or more: Slurm counts in minutes", fix)
    return str(value)


def _folder(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"/?[\w.@+-]+(/[\w.@+-]+)*", value) or ".." in value.split("/"):
        raise broken(
            "must be a folder: absolute on the shared file system, or relative to the run folder",
            "for example 'checkpoints' or '/shared/checkpoints/run-7'",
        )
    return value


Word = Annotated[str, BeforeValidator(_word)]
"""Text that reaches the workload as it is written, but for $NAME of PROVIDED."""

VariableName = Annotated[str, BeforeValidator(_variable_name)]
Duration = Annotated[str, BeforeValidator(_duration)]
Folder = Annotated[str, BeforeValidator(_folder)]
JobName = Annotated[str, Field(strict=True, pattern=r"^[a-z0-9]([a-z0-9._-]{0,38}[a-z0-9])?$")]
Count = Annotated[int, Field(strict=True, ge=1, le=2000)]
Gpus = Annotated[int, Field(strict=True, ge=0, le=64)]
Tasks = Annotated[int, Field(strict=True, ge=1, le=256)]


class JobSpec(BaseModel):
    """One job. `workload` (a Python file) or `run` (shell lines) is what every rank does."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: JobName
    nodes: Count = 1
    group: Annotated[str, Field(strict=True, min_length=1)] | None = None
    """Node group to run on; None: the first one that is large enough."""
    gpus_per_node: Gpus | None = None
    """None: all that a node of the group has."""
    tasks_per_node: Tasks | None = None
    """Ranks per node; None: one per GPU, or one where there is no real GPU to drive."""
    cpus_per_task: Tasks | None = None
    memory_per_node: Annotated[str, Field(strict=True, pattern=r"^[1-9]\d{0,6}[MG]$")] | None = None
    """None: all that Slurm may hand out on the node."""
    launcher: Literal["srun", "torchrun"] = "srun"
    workload: Annotated[str, Field(strict=True, min_length=1)] | None = None
    """A file of jobs/workloads/ by name, or a path (relative to the job file)."""
    args: tuple[Word, ...] = ()
    run: Annotated[str, Field(strict=True, min_length=1)] | None = None
    env: dict[VariableName, Word] = {}
    time: Duration = "1h"
    retries: Annotated[int, Field(strict=True, ge=0, le=1000)] = 0
    """How often the job is started again after a failure or a lost node, or at its time limit with checkpoints."""
    checkpoint_dir: Folder | None = None
    """Where the workload keeps checkpoints, relative to the run folder. Set: the time limit is no failure."""

    @property
    def seconds(self) -> int:
        """The time limit."""
        return parse_seconds(self.time) or _SHORTEST
