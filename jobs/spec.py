"""JobSpec: what a person writes in a job file, and the rule of every key. Pure; loader.py reads the file.

Plain dataclasses and functions: `yard submit` must answer at once, and importing pydantic alone takes longer than all
the rest of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from components.errors import Problem
from jobs.container import Container, container
from jobs.launcher import LAUNCHERS, Source
from jobs.rules import Broken, Rule, duration, environment, names, one_of, parse_seconds, text_like, texts, whole, words

_MINUTE = 60
_FOLDER = r"(?!(?:.*/)?\.\.(?:/|$))/?[\w.@+-]+(?:/[\w.@+-]+)*"
_LINES = r"(?s).*\S.*"


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job. `workload` (a Python file), `script` (one on the cluster) or `run` (shell lines) is what ranks do."""

    name: str
    nodes: int = 1
    min_nodes: int | None = None
    """Of an elastic launcher: with how few nodes it goes on. None: 1."""
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
    mpi: str | None = None
    """How ranks of MPI find one another when srun starts them; None: Slurm's own default."""
    container: Container | None = None
    workload: str | None = None
    """A file of jobs/workloads/ by name, or a path (relative to the job file)."""
    script: str | None = None
    """A Python file on the cluster, relative to `workdir`."""
    args: tuple[str, ...] = ()
    run: str | None = None
    setup: str | None = None
    """Shell lines before the work, in the same shell: once a task, one task at a time on each node."""
    workdir: str | None = None
    """Where setup and work start, as every node sees it, relative to the run folder; None: the run folder."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Small files that travel into the run folder: name and text."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    """Names of environment variables of the submitter that ranks get too; see secrets.py."""
    time: str = "1h"
    retries: int = 0
    """How often the job is started again after a failure; a lost node and a full time limit do not count."""
    chain: int = 1
    """How many jobs of this kind follow one another, each after the one before has ended."""
    heartbeat: str | None = None
    """A rank whose file heartbeat-RANK (in CHECKPOINT_DIR, else RUN_DIR) has not moved for so long is frozen."""
    checkpoint_dir: str | None = None
    """Where the workload keeps checkpoints, relative to the run folder. Set: the time limit is no failure."""
    model: str | None = None
    """A model that `yard size` knows: the job is refused where the GPUs cannot hold it."""
    layout: str = "fsdp"
    """How the job spreads it, as `yard size` writes layouts."""
    about: str | None = None
    software: str | None = None
    """What the nodes must have, in words."""
    proved: str | None = None
    """Where and when it ran, in words."""
    unproved: str | None = None
    """What of it has never run, and why, in words; `--dry-run` shows it."""

    @property
    def seconds(self) -> int:
        """The time limit."""
        return parse_seconds(self.time) or _MINUTE

    @property
    def heartbeat_seconds(self) -> int | None:
        """How old a heartbeat may be; None: nobody looks."""
        return parse_seconds(self.heartbeat) if self.heartbeat is not None else None

    @property
    def source(self) -> Source:
        """Which of the three the job runs."""
        if self.workload is not None:
            return Source.WORKLOAD
        return Source.SCRIPT if self.script is not None else Source.RUN


_FOLDER_RULE = text_like(
    _FOLDER,
    "must be a folder: absolute on the shared file system, or relative to the run folder",
    "for example 'checkpoints' or '/shared/checkpoints/run-7'",
)
_WORDS = text_like(_LINES, "must be text", "write a sentence, in quotes if it has a colon")

RULES: dict[str, Rule] = {
    "name": text_like(
        r"[a-z0-9]([a-z0-9._-]{0,38}[a-z0-9])?",
        "must be at most 40 lower-case letters, digits, '.', '_' and '-'",
        "for example 'gpt-small'; a number needs quotes",
    ),
    "nodes": whole(1, 2000),
    "min_nodes": whole(1, 2000),
    "group": text_like(r"\S+", "must be the name of a node group", "`yard nodes` lists them"),
    "gpus_per_node": whole(0, 64),
    "tasks_per_node": whole(1, 256),
    "cpus_per_task": whole(1, 1024),
    "memory_per_node": text_like(r"[1-9]\d{0,6}[MG]", "must be a number and M or G", "for example '700M'"),
    "launcher": one_of(LAUNCHERS),
    "mpi": one_of(("pmix", "pmi2")),
    "container": container,
    "workload": text_like(_LINES, "must be a file", "for example 'allreduce.py'"),
    "script": text_like(r"[\w./@+-]*[\w@+-]\.py", "must be a Python file on the cluster", "for example 'train.py'"),
    "args": words,
    "run": text_like(_LINES, "must be shell lines", "for example `run: echo hello`"),
    "setup": text_like(_LINES, "must be shell lines", "for example `setup: source /shared/venv/bin/activate`"),
    "workdir": _FOLDER_RULE,
    "files": texts,
    "env": environment,
    "secrets": names,
    "time": duration(_MINUTE, "Slurm counts in minutes"),
    "retries": whole(0, 1000),
    "chain": whole(1, 100),
    "heartbeat": duration(10, "shorter pauses are ordinary"),
    "checkpoint_dir": _FOLDER_RULE,
    "model": text_like(r"[\w.-]+", "must be a model that `yard size` knows", "for example 'opt-6.7b'"),
    "layout": text_like(r"[a-z0-9-]+", "must be a layout", "for example 'fsdp' or 'tp4-pp6-zero1'"),
    "about": _WORDS,
    "software": _WORDS,
    "proved": _WORDS,
    "unproved": _WORDS,
}


def read_spec(raw: Mapping[Any, Any]) -> tuple[JobSpec | None, list[Problem]]:
    """Check every key of a job. Returns the job, or None with all the problems there are."""
    problems = [unknown_key(str(key), "") for key in raw if key not in RULES]
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


def unknown_key(key: str, under: str) -> Problem:
    """Return the problem of a key that a job does not have; `under` is the section it stands in, with its dot."""
    near = get_close_matches(key, RULES, n=1)
    fix = f"write '{near[0]}'" if near else f"remove it; a job has {', '.join(RULES)}"
    return Problem(path=under + key, rule="is not a key of a job", fix=fix)
