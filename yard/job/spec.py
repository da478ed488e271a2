"""The keys of a job file, and their rules.

JobSpec is a plain dataclass, because importing pydantic would take longer than the rest of `yard submit`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import Problem
from yard.environments.definition import ChosenEnvironment, environment_rule, read_environment
from yard.job.launcher import LAUNCHERS, Source
from yard.job.rules import (
    Rule,
    duration,
    environment,
    list_of,
    one_of,
    parse_seconds,
    secret_names,
    section,
    text_like,
    texts,
    whole,
    word,
)

INDEX = "ARRAY_INDEX"
"""Environment variable that contains a job's number in its array."""
MOST_ELEMENTS = 100
"""Maximum number of jobs in an array. Each of them has its own submission and run folder."""
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?")
_LIMIT = re.compile(r"(?P<parts>[^%]+)(?:%(?P<at_once>[1-9]\d{0,5}))?")
RUNTIMES = ("pyxis", "enroot", "docker")
SSH_PORT = 2222
"""Port of the sshd in a container. The host's sshd, which uses port 22, would start ranks outside the container."""
_MINUTE = 60
_FOLDER = r"(?!(?:.*/)?\.\.(?:/|$))/?[\w.@+-]+(?:/[\w.@+-]+)*"
_LINES = r"(?s).*\S.*"
_FOLDER_RULE = text_like(
    _FOLDER,
    "must be an absolute path on the shared file system, or a path relative to the run folder",
    "for example 'checkpoints' or '/shared/checkpoints/run-7'",
)
_WORDS = text_like(_LINES, "must be text", "write a sentence, in quotes if it contains a colon")


def parse_array(text: str) -> tuple[list[int], int | None] | None:
    """Parse sbatch's notation for arrays, such as '0-9', '1,3,5', '0-20:5' or '0-9%2'. Return None if it is invalid.

    Otherwise, return the jobs' numbers, and how many of them may run at the same time, or None for no limit.
    """
    whole = _LIMIT.fullmatch(text)
    found = [_PART.fullmatch(part) for part in whole["parts"].split(",")] if whole else []
    indices: list[int] = []
    for part in found:
        if part is None or part[3] == "0":
            return None
        indices += range(int(part[1]), int(part[2] or part[1]) + 1, int(part[3] or 1))
    if whole is None or not indices or len(set(indices)) != len(indices):
        return None
    return indices, int(whole["at_once"]) if whole["at_once"] else None


def _array(value: Any) -> Iterator[Problem]:
    found = parse_array(value) if isinstance(value, str) else None
    if found is None:
        rule = "must be a list of numbers and ranges, with each number once"
        yield Problem(path="", rule=rule, fix="for example '0-9', '1,3,5' or '0-9%2' (two at the same time), in quotes")
    elif len(found[0]) > MOST_ELEMENTS:
        rule = f"must have at most {MOST_ELEMENTS} jobs, not {len(found[0])}"
        yield Problem(path="", rule=rule, fix="submit several arrays")


@dataclass(frozen=True, kw_only=True)
class Container:
    """A job's container. `image` has the form 'registry/name:tag' or, for pyxis and enroot, 'registry#name:tag'.

    `mounts` has entries of the form HOST:CONTAINER or HOST:CONTAINER:ro. The shared path and /etc/trainyard are always
    mounted.
    """

    image: str
    runtime: str
    mounts: Sequence[str] = ()


def _mount(value: Any) -> Iterator[Problem]:
    parts = value.removesuffix(":ro").split(":") if isinstance(value, str) else []
    # docker and pyxis use commas as separators.
    if len(parts) != 2 or not all(  # noqa: PLR2004  (host and container)
        part.startswith("/") and ".." not in part.split("/") and "," not in part for part in parts
    ):
        rule = "must be HOST:CONTAINER or HOST:CONTAINER:ro, with absolute paths and without commas"
        yield Problem(path="", rule=rule, fix="for example '/data:/data:ro'")


_container = section(
    {
        "image": text_like(r"[\w./:@#+-]+", "must be an image name", "for example 'nvcr.io/nvidia/pytorch:26.01-py3'"),
        "runtime": one_of(RUNTIMES),
        "mounts": list_of(_mount, "[/data:/data:ro]"),
    },
    ("image", "runtime"),
    "container: {image: 'nvcr.io/nvidia/pytorch:26.01-py3', runtime: docker}",
)


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """A job. Each rank runs either `workload`, `script` or `run`."""

    name: str
    nodes: int = 1
    min_nodes: int | None = None
    """The fewest nodes on which an elastic job continues. None means one node."""
    group: str | None = None
    """The node group, or None for the first group into which the job fits."""
    gpus_per_node: int | None = None
    """The number of GPUs on each node, or None for all of them."""
    tasks_per_node: int | None = None
    """The number of ranks on each node, or None for one per real GPU, or one on a node without real GPUs."""
    cpus_per_task: int | None = None
    memory_per_node: str | None = None
    """The memory on each node, or None for all memory that Slurm can allocate."""
    launcher: str = "srun"
    mpi: str | None = None
    """The value of srun's --mpi option, or None for Slurm's default."""
    container: Container | None = None
    environment: ChosenEnvironment | None = None
    """The Python environment of `setup` and the program, or None if they use the nodes' own Python."""
    workload: str | None = None
    """The Python file to upload, which is in yard/workloads or has a path relative to the job file."""
    script: str | None = None
    """The Python file on the cluster, relative to `workdir`."""
    args: tuple[str, ...] = ()
    run: str | None = None
    """The shell commands to run."""
    setup: str | None = None
    """Shell commands that each task runs before the program. The tasks on a node run them one after another."""
    workdir: str | None = None
    """The working directory of `setup` and the program, relative to the run folder, which is the default."""
    code: str | None = None
    """The directory to upload, relative to the job file. Its copy is the default working directory."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The contents of small files that yard uploads to the run folder, by name."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    """The variables that yard copies from the environment of `yard submit` to the ranks."""
    after: Sequence[int] = ()
    """The numbers of the jobs that must complete before this job starts."""
    array: str | None = None
    """The numbers of an array's jobs in sbatch's notation, or None for a single job."""
    time: str = "1h"
    retries: int = 0
    """The maximum number of restarts after failures, without those caused by lost nodes or time limits."""
    chain: int = 1
    """The number of identical jobs that run one after another."""
    heartbeat: str | None = None
    """The job fails if a file heartbeat-RANK in CHECKPOINT_DIR or RUN_DIR is older than this."""
    checkpoint_dir: str | None = None
    """The checkpoint folder, relative to the run folder. A job with checkpoints restarts at its time limit."""
    model: str | None = None
    """The model's name in `yard size`. The job is refused if the model does not fit into GPU memory."""
    layout: str = "fsdp"
    """How the model is distributed across GPUs, in the notation of `yard size`."""
    about: str | None = None
    software: str | None = None
    """The software that the nodes need."""
    verified: str | None = None
    """The dates and machines of successful runs."""
    unverified: str | None = None
    """The parts of a recipe that have never run, and the reasons."""

    @property
    def seconds(self) -> int:
        """The time limit in seconds."""
        return parse_seconds(self.time) or _MINUTE

    @property
    def warning_seconds(self) -> int:
        """The seconds between the warning signal and the time limit: five minutes, or a quarter of a short limit."""
        return min(300, self.seconds // 4)

    @property
    def heartbeat_seconds(self) -> int | None:
        """The maximum age of a heartbeat in seconds, or None if heartbeats are not checked."""
        return parse_seconds(self.heartbeat) if self.heartbeat is not None else None

    @property
    def runtime(self) -> str:
        """The container runtime, or '' for a job without a container."""
        return self.container.runtime if self.container is not None else ""

    @property
    def source(self) -> Source:
        """The key in the job file that names the program."""
        if self.workload is not None:
            return Source.WORKLOAD
        return Source.SCRIPT if self.script is not None else Source.RUN


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
    "container": _container,
    "environment": environment_rule,
    "workload": text_like(_LINES, "must be a file", "for example 'allreduce.py'"),
    "script": text_like(r"[\w./@+-]*[\w@+-]\.py", "must be a Python file on the cluster", "for example 'train.py'"),
    "args": list_of(word, "[--steps, 20]"),
    "run": text_like(_LINES, "must be shell commands", "for example `run: echo hello`"),
    "setup": text_like(_LINES, "must be shell commands", "for example `setup: source /shared/venv/bin/activate`"),
    "workdir": _FOLDER_RULE,
    "code": text_like(_LINES, "must be a directory", "for example `code: .`"),
    "files": texts,
    "env": environment,
    "secrets": secret_names,
    "after": list_of(whole(1, 2**31 - 1), "[12]"),
    "array": _array,
    "time": duration(_MINUTE, "Slurm rounds time limits to minutes"),
    "retries": whole(0, 1000),
    "chain": whole(1, 100),
    "heartbeat": duration(10, "shorter pauses are normal"),
    "checkpoint_dir": _FOLDER_RULE,
    "model": text_like(r"[\w.-]+", "must be a model name from `yard size`", "for example 'opt-6.7b'"),
    "layout": text_like(r"[a-z0-9-]+", "must be a layout", "for example 'fsdp' or 'tp4-pp6-zero1'"),
    "about": _WORDS,
    "software": _WORDS,
    "verified": _WORDS,
    "unverified": _WORDS,
}


job_rule = section(RULES, ("name",), "name: hello")


def read_spec(raw: Mapping[str, Any]) -> JobSpec:
    """Return the job that a job file's keys define. The keys must follow `job_rule`."""
    values = dict(raw)
    if "args" in raw:
        values["args"] = tuple(map(str, raw["args"]))
    if "env" in raw:
        values["env"] = {name: str(value) for name, value in raw["env"].items()}
    if "container" in raw:
        values["container"] = Container(**raw["container"])
    if "environment" in raw:
        values["environment"] = read_environment(raw["environment"])
    return JobSpec(**values)
