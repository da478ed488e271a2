"""The keys of a job file, and the rules for their values. loader.py contains the rules for combinations of keys.

JobSpec is a plain dataclass, because importing pydantic would take longer than the rest of `yard submit`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, NoReturn

from trainyard.errors import JobFileError, Problem
from yard.environments.definition import ChosenEnvironment, environment_rule, read_environment
from yard.environments.packages import EXAMPLE
from yard.job.launcher import LAUNCHERS, Source

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
"""Environment variables that are set for every rank, CHECKPOINT_DIR only with `checkpoint_dir` and ARRAY_INDEX only in
arrays. `args` and `env` can refer to these variables as $NAME."""

_VARIABLE = re.compile(r"\$(?:\{(\w*)\}|(\w+))")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_CLOCK = re.compile(r"(?:(\d{1,3})-)?(\d{1,3}):([0-5]\d):([0-5]\d)")
_SPAN = re.compile(r"(\d{1,6})([smhd])")
RUN_DIR = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}$")
"""Matches the end of a run folder's name: the time of submission and a random token."""
ENVIRONMENT_FILE = "environment"
"""The file in a run folder that contains the path of the job's Python environment."""
SHARED_SCRIPT = "yard.sh"
"""The file in a run folder that contains the shell code shared by all jobs."""
OWN_FILES = frozenset(
    {SHARED_SCRIPT, "job.sbatch", "job.sh", "job.log", "job.json", "run.sh", "setup.sh", "secrets.sh"}
    | {"state.json", "hostfile", "events", "runner", "code", "submit.sh", "snapshot.json", "snapshot.diff"}
    | {ENVIRONMENT_FILE, "venv", "run-id", "record.json", "nccl"}
    | {"goodput.py", "flight.py", "flight", "hang.py", "hang", "stall.py"}
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
    """Yield the problems in the value at `path`, with `path` prepended to each problem's path."""
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
    """Return a rule that requires one of `choices`."""

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
    """Check a string or number. All variables in the value must be in PROVIDED."""
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
    """Check that a value is a list of unique names of environment variables."""
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
    """Return a rule for a mapping. `rules` maps keys to their rules, and `example` is part of the fix."""

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


INDEX = "ARRAY_INDEX"
"""Environment variable that contains a job's number in its array."""
MOST_ELEMENTS = 100
"""Maximum number of jobs in an array. Each job is submitted separately and has its own run folder."""
_PART = re.compile(r"(\d{1,6})(?:-(\d{1,6})(?::(\d{1,6}))?)?")
_LIMIT = re.compile(r"(?P<parts>[^%]+)(?:%(?P<at_once>[1-9]\d{0,5}))?")
RUNTIMES = ("pyxis", "enroot", "docker")
SSH_PORT = 2222
"""Port of the sshd in a container. The host's sshd, which uses port 22, would start ranks outside the container."""
_MINUTE = 60
_FOLDER = r"(?!(?:.*/)?\.\.(?:/|$))/?[\w.@+-]+(?:/[\w.@+-]+)*"
_LINES = r"(?s).*\S.*"
_GROUP = r"[a-z_][a-z0-9_-]{0,31}"
_FOLDER_RULE = text_like(
    _FOLDER,
    "must be an absolute path on the shared file system, or a path relative to the run folder",
    "for example 'checkpoints' or '/shared/checkpoints/run-7'",
)
_WORDS = text_like(_LINES, "must be text", "write a sentence, in quotes if it contains a colon")


def parse_array(text: str) -> tuple[list[int], int | None] | None:
    """Parse sbatch's notation for arrays, such as '1,3,5', '0-20:5' or '0-9%2'. Return None if `text` is invalid.

    Otherwise, return the jobs' numbers and the maximum number of simultaneous jobs. None means that there is no limit.
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
    """A job's container. `image` has the form 'registry/name:tag' or, for pyxis and enroot, 'registry#name:tag'."""

    image: str
    runtime: str
    mounts: Sequence[str] = ()
    """HOST:CONTAINER or HOST:CONTAINER:ro. The shared path and /etc/trainyard are always mounted."""


def _mount(value: Any) -> Iterator[Problem]:
    parts = value.removesuffix(":ro").split(":") if isinstance(value, str) else []
    # docker and pyxis use commas as separators.
    if len(parts) != 2 or not all(  # noqa: PLR2004  (host and container)
        part.startswith("/") and ".." not in part.split("/") and "," not in part for part in parts
    ):
        rule = "must be HOST:CONTAINER or HOST:CONTAINER:ro, with absolute paths and without commas"
        yield Problem(path="", rule=rule, fix="for example '/data:/data:ro'")


_group = text_like(r"\S+", "must be the name of a node group", "`yard nodes` lists them")


def _groups(value: Any) -> Iterator[Problem]:
    if value == []:
        yield Problem(path="", rule="must list at least one node group", fix="for example `groups: [a, b]`")
    yield from list_of(_group, "groups: [a, b]")(value)
    for index, name in enumerate(value if isinstance(value, list) else ()):
        if name in value[:index]:
            yield Problem(path=f"[{index}]", rule=f"'{name}' is listed twice", fix="remove one of them")


def _is_amount(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1e9  # noqa: PLR2004  (neither infinite nor NaN)


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
    """A job. Each rank runs `workload`, `script` or `run`."""

    name: str
    nodes: int = 1
    min_nodes: int | None = None
    """The minimum number of nodes that an elastic job needs to continue. None means one node."""
    group: str | None = None
    """The node group, or None for the first suitable group."""
    groups: Sequence[str] = ()
    """The node groups of which Slurm chooses one, or empty for `group`."""
    account: str | None = None
    """The Slurm account, or None for the user's default."""
    readable_by: str | None = None
    """The group whose members can read the job's log and other files, or None if only its owner can."""
    gpus_per_node: int | None = None
    """The number of GPUs on each node, or None for all of them."""
    tasks_per_node: int | None = None
    """The number of ranks on each node. None means one rank per real GPU, or one rank if the node has no real GPU."""
    cpus_per_task: int | None = None
    memory_per_node: str | None = None
    """The memory on each node, or None for all memory that Slurm can allocate."""
    launcher: str = "srun"
    mpi: str | None = None
    """The value of srun's --mpi option, or None for Slurm's default."""
    container: Container | None = None
    environment: ChosenEnvironment | None = None
    """The Python environment of `setup` and the program, or None if they use the nodes' own Python."""
    packages: Sequence[str] = ()
    """The packages that are added to the environment (the key `with`): requirements, files and folders."""
    workload: str | None = None
    """The Python file to upload: the name of a file in yard/workloads, or a path relative to the job file."""
    script: str | None = None
    """The Python file on the cluster, relative to `workdir`."""
    args: tuple[str, ...] = ()
    run: str | None = None
    """The shell commands to run."""
    setup: str | None = None
    """Shell commands that each task runs before the program. Only one task per node runs them at a time."""
    workdir: str | None = None
    """The working directory, relative to the run folder. Default: the copy of `code`, if set, or the run folder."""
    code: str | None = None
    """The directory to upload, relative to the job file."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Mapping from name to contents for small files that yard uploads to the run folder."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Sequence[str] = ()
    """The names of variables that yard copies from the environment of `yard submit` to the ranks."""
    after: Sequence[int] = ()
    """The numbers of the jobs that must complete before this job starts."""
    array: str | None = None
    """The numbers of an array's jobs in sbatch's notation, or None for a single job."""
    time: str = "1h"
    max_usd: float | None = None
    """The most dollars that all starts of the job may cost at list prices, or None if there is no limit."""
    retries: int = 0
    """The maximum number of restarts after failures. Lost nodes and time limits do not count as failures."""
    chain: int = 1
    """The number of identical jobs that run one after another."""
    heartbeat: str | None = None
    """The maximum age of the files heartbeat-RANK in CHECKPOINT_DIR or RUN_DIR. If a file is older, the job fails."""
    stall_minutes: int | None = None
    """The time in minutes without any progress after which the job fails, or None if progress is not checked."""
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
        """The seconds from the warning signal to the time limit: a quarter of the limit, but at most five minutes."""
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
    "group": _group,
    "groups": _groups,
    "account": text_like(_GROUP, "must be the name of a Slurm account", "for example 'vision'"),
    "readable_by": text_like(_GROUP, "must be the name of a group", "for example 'people', or a Slurm account"),
    "gpus_per_node": whole(0, 64),
    "tasks_per_node": whole(1, 256),
    "cpus_per_task": whole(1, 1024),
    "memory_per_node": text_like(r"[1-9]\d{0,6}[MG]", "must be a number and M or G", "for example '700M'"),
    "launcher": one_of(LAUNCHERS),
    "mpi": one_of(("pmix", "pmi2")),
    "container": _container,
    "environment": environment_rule,
    "with": list_of(
        text_like(r"[\w./][^\n@]*", "must be a package, a file or a folder", f"for example {EXAMPLE}"),
        "['transformers==4.57', ./mylib]",
    ),
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
    "max_usd": _required(_is_amount, "must be a positive number of dollars", "for example 25"),
    "retries": whole(0, 1000),
    "chain": whole(1, 100),
    "heartbeat": duration(10, "shorter pauses are normal"),
    "stall_minutes": whole(5, 10080),
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
    """Return the job that a job file's keys define. The keys must comply with `job_rule`."""
    values = dict(raw)
    if "groups" in raw:
        values["groups"] = tuple(raw["groups"])
    if "args" in raw:
        values["args"] = tuple(map(str, raw["args"]))
    if "env" in raw:
        values["env"] = {name: str(value) for name, value in raw["env"].items()}
    if "container" in raw:
        values["container"] = Container(**raw["container"])
    if "environment" in raw:
        values["environment"] = read_environment(raw["environment"])
    if "with" in raw:
        values["packages"] = tuple(values.pop("with"))
    return JobSpec(**values)
