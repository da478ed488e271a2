"""Writes the JSON Schemas of the documents that yard's commands print with --json: python -m tools.documents.

The schemas are in yard/schemas, one file for each command. They are generated from the types in this module, and
tests/yard/test_documents.py compares them with the output of each command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from yard.doctor.findings import HostProblem
from yard.preview.account import Account
from yard.preview.describe import Quota
from yard.preview.difference import Difference
from yard.preview.engine import Step
from yard.prices import PriceChange
from yard.repair.steps import Case, Decision
from yard.run.bench import Record
from yard.run.goodput import Goodput
from yard.run.queue import Job
from yard.stack.hosts import ScannedKey

FOLDER = Path(__file__).parents[1] / "yard" / "schemas"


@dataclass(frozen=True, kw_only=True)
class Document:
    """`version` is the version of the format. A new key keeps the version."""

    version: Literal[1]


@dataclass(frozen=True, kw_only=True)
class Error(Document):
    """A command that failed. The exit code is not 0."""

    error: str


@dataclass(frozen=True, kw_only=True)
class ExplainedJob(Document, Job):
    """A job. `why` is the state as a sentence."""

    why: str


@dataclass(frozen=True, kw_only=True)
class ListedJob(ExplainedJob):
    """A job. `node_fault` is the fault of a node that is the likely cause of a failure. `goodput` needs --long."""

    node_fault: str | None
    goodput: Goodput | None = None


@dataclass(frozen=True, kw_only=True)
class JobLog(ExplainedJob):
    rank: int
    lines: list[str]


@dataclass(frozen=True, kw_only=True)
class LogLine(Document):
    """A line of a followed log."""

    line: str


@dataclass(frozen=True, kw_only=True)
class Submission(Document):
    """A submitted job. `left_out` names the files that were not sent because they look like secrets."""

    id: int
    name: str
    run_dir: str
    commit: str | None
    left_out: list[str]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The price of a job on a cluster that does not exist yet. Unknown values are null."""

    source: str
    file: str
    group: str | None
    nodes: int | None
    cluster_usd_per_hour: float | None
    job_usd_per_hour: float | None
    limit_s: int | None
    usd_at_limit: float | None
    time_s: float | None


@dataclass(frozen=True, kw_only=True)
class Rehearsal(Document):
    """The files of a job that was not submitted. `estimate` is null if the cluster exists.

    `environment` contains sentences about the packages of the job.
    """

    dry_run: Literal[True]
    name: str
    jobs: int
    starts: str
    files: dict[str, str]
    code: dict[str, Any] = field(default_factory=dict)
    estimate: Estimate | None
    environment: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class Cancellation(Document):
    cancelled: list[int]
    already_ended: list[int]


@dataclass(frozen=True, kw_only=True)
class Resumption(Document):
    id: int
    resumes: int
    run_dir: str


@dataclass(frozen=True, kw_only=True)
class SessionCommands(Document):
    """The ssh commands of a session. `forward` is null without ports, or if the node is not known yet."""

    argv: list[str]
    forward: list[str] | None


@dataclass(frozen=True, kw_only=True)
class Argv(Document):
    argv: list[str]


@dataclass(frozen=True, kw_only=True)
class Notebook(Document):
    """A job with JupyterLab: its address, and the ssh command that forwards a port to it."""

    id: int
    url: str
    forward: list[str]


@dataclass(frozen=True, kw_only=True)
class Editor(Document):
    """The SSH host of a job, the file that defines it, and the command that opens VS Code."""

    host: str
    config: str
    command: list[str]


@dataclass(frozen=True, kw_only=True)
class Recipe(Document):
    name: str
    about: str | None
    nodes: int
    launcher: str
    container: str | None
    environment: str | None
    software: str | None
    smoke: bool
    verified: str | None
    unverified: str | None


@dataclass(frozen=True, kw_only=True)
class Host(Document):
    """A host. `reason` is Slurm's reason, and `why` also contains who set it."""

    name: str
    group: str
    state: str
    reason: str
    why: str
    private_ip: str
    gpus: int
    gpu_type: str | None


@dataclass(frozen=True, kw_only=True)
class HistoryRow(Document):
    """A node left service, or returned to service if `reason` is empty. `time` is in seconds since 1970."""

    time: float
    node: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class HostFile(Document):
    format: str
    lines: list[str]


@dataclass(frozen=True, kw_only=True)
class ProbedProblem(HostProblem):
    probe: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis(Document):
    healthy: bool
    seconds: float
    checks: dict[str, list[ProbedProblem]]
    facts: dict[str, list[str]]


@dataclass(frozen=True, kw_only=True)
class RepairStep(Document, Decision):
    """A node's next repair step."""


@dataclass(frozen=True, kw_only=True)
class ExplainedStep(Document, Case, Decision):
    """A node's next repair step, its history and its repairs."""

    strikes: int


@dataclass(frozen=True, kw_only=True)
class ChangedNode(Document):
    name: str
    state: str
    reason: str
    changed: bool


@dataclass(frozen=True, kw_only=True)
class RollPlan(Document):
    group: str
    pending: list[str]
    first: list[str]


@dataclass(frozen=True, kw_only=True)
class SentDirectory(Document):
    dest: str
    files: int
    changed: list[str]
    deleted: list[str]
    left_out: list[str]
    dry_run: bool


@dataclass(frozen=True, kw_only=True)
class CopiedPath(Document):
    source: str
    target: str


@dataclass(frozen=True, kw_only=True)
class Refreshed(Document):
    stack: str
    cluster: str
    ssh_config: str
    saved: str | None


@dataclass(frozen=True, kw_only=True)
class ScannedHost(Document, ScannedKey):
    """A host key. Compare its fingerprint on the host before you use it."""


@dataclass(frozen=True, kw_only=True)
class ForgottenHost(Document):
    forgotten: str


@dataclass(frozen=True, kw_only=True)
class BuiltEnvironment(Document):
    name: str
    path: str


@dataclass(frozen=True, kw_only=True)
class PlannedEnvironment(Document):
    name: str
    system_packages: bool
    source: list[str]
    checkouts: list[dict[str, Any]]
    hashed: bool
    locked: bool
    digest: str
    packages: list[str]
    base: str = ""


@dataclass(frozen=True, kw_only=True)
class ListedEnvironment(Document):
    """An environment on the cluster. `built` is in seconds since 1970, `size` in bytes. `base` is what it extends."""

    folder: str
    name: str
    python: str
    built: int
    size: int
    seconds: float
    base: str | None


@dataclass(frozen=True, kw_only=True)
class Removed(Document):
    removed: list[str]


@dataclass(frozen=True, kw_only=True)
class Dataset(Document):
    synthetic: int
    vocab: int
    token_bytes: int
    documents: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class CheckedDataset(Document):
    documents: int
    tokens: int
    token_bytes: int
    vocab: int | None
    looked_at: int
    digest: str


@dataclass(frozen=True, kw_only=True)
class CheckedHosts(Document):
    whole: bool
    hosts: dict[str, CheckedDataset]
    trouble: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class PostPlan(Document):
    post: str
    title: str
    stack: str
    image: str | None
    environments: list[str]
    commands: list[str]
    figures: list[dict[str, Any]]
    differs: Any


@dataclass(frozen=True, kw_only=True)
class PostResult(Document):
    post: str
    smoke: bool
    seconds: int
    figures: list[dict[str, Any]]
    differs: Any


@dataclass(frozen=True, kw_only=True)
class SizedLayout:
    layout: str
    recompute: bool
    bytes: dict[str, int]
    fits: bool


@dataclass(frozen=True, kw_only=True)
class ModelSize(Document):
    model: str
    parameters: int
    gpu: str
    gpu_gb: float
    nodes: int
    gpus_per_node: int
    fits: bool
    layouts: list[SizedLayout]
    advice: str


@dataclass(frozen=True, kw_only=True)
class Benchmark(Document, Record):
    """A benchmark's record. `trouble` contains the reasons if `passed` is false."""

    passed: bool
    trouble: list[str]
    file: str | None


@dataclass(frozen=True, kw_only=True)
class Resources:
    by_operation: dict[str, int]
    by_type: dict[str, int]
    changes: list[Step]
    errors: list[str]
    warnings: list[str]


@dataclass(frozen=True, kw_only=True)
class StackPreview:
    """A stack. docs/preview.md describes the keys."""

    stack: str
    file: str
    fine: bool
    problems: list[dict[str, Any]]
    remarks: list[dict[str, Any]]
    plan: dict[str, Any] | None
    price: dict[str, Any] | None
    services: list[dict[str, Any]]
    storage: dict[str, Any] | None
    quota: list[Quota]
    user_data_bytes: dict[str, int]
    user_data_limit: int
    resources: Resources | None
    difference: Difference | None
    account: Account | None


@dataclass(frozen=True, kw_only=True)
class Preview(Document):
    format: int
    offline: bool
    base: str | None
    base_problem: str | None
    fine: bool
    stacks: list[StackPreview]


@dataclass(frozen=True, kw_only=True)
class NewStack(Document):
    format: int
    stack: str
    file: str
    price: dict[str, Any] | None
    services: list[dict[str, Any]]
    quota: list[Quota]
    remarks: list[dict[str, Any]]
    account: Account | None
    host_keys: list[ScannedKey]
    next: list[str]


@dataclass(frozen=True, kw_only=True)
class NewProject(NewStack):
    """A new Pulumi project with one stack. `files` are its files."""

    files: list[str]


@dataclass(frozen=True, kw_only=True)
class Check(Document):
    id: str
    level: str
    platform: str
    rule: str
    fixes: list[str]


@dataclass(frozen=True, kw_only=True)
class Price(Document):
    """A machine's list price in dollars per hour. Unknown prices are null."""

    provider: str
    machine: str
    usd_per_hour: float | None
    spot_usd_per_hour: float | None
    spot_source: str
    region: str
    dated: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ChangedPrice(Document, PriceChange):
    """A machine's old and new price."""


@dataclass(frozen=True, kw_only=True)
class Image(Document):
    name: str
    baked_image: str | None


DOCUMENTS: Mapping[str, Any] = {
    "bake": Image,
    "bench nccl": Benchmark,
    "bench scaling": Benchmark,
    "bench train": Benchmark,
    "cancel": Cancellation,
    "checks": list[Check],
    "code": Editor,
    "cp": CopiedPath,
    "data synth": Dataset,
    "data verify": CheckedHosts | CheckedDataset,
    "doctor": Diagnosis,
    "drain": list[ChangedNode],
    "env build": BuiltEnvironment | PlannedEnvironment,
    "env ls": list[ListedEnvironment],
    "env rm": Removed,
    "error": Error,
    "heal": list[RepairStep] | ExplainedStep,
    "hostfile": HostFile,
    "hosts forget": ForgottenHost,
    "hosts scan": list[ScannedHost],
    "init": NewStack,
    "logs": JobLog | LogLine | ListedJob,
    "new": NewProject,
    "nodes": list[Host] | list[HistoryRow],
    "notebook": Notebook,
    "preview": Preview,
    "prices": list[Price],
    "prices update": list[ChangedPrice],
    "ps": list[ListedJob],
    "recipes": list[Recipe] | Recipe,
    "refresh": Refreshed,
    "replace": RollPlan,
    "reproduce": PostPlan | PostResult,
    "resume": Resumption,
    "roll": RollPlan,
    "run": SessionCommands,
    "size": ModelSize,
    "ssh": Argv,
    "submit": Submission | Rehearsal | LogLine | ListedJob | Cancellation,
    "sync": SentDirectory,
    "undrain": list[ChangedNode],
    "wait": ListedJob,
}
"""Mapping from each command with --json to the type of its document, or of each line if it prints several documents."""


def schema_of(command: str) -> dict[str, Any]:
    """Return the schema of a command's document."""
    found = _without_titles(TypeAdapter(DOCUMENTS[command]).json_schema())
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"yard {command} --json", **found}


def _without_titles(value: Any) -> Any:
    """Return a schema without the titles that pydantic generates from the names."""
    if isinstance(value, list):
        return [_without_titles(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_titles(each) for key, each in value.items() if key != "title" or not isinstance(each, str)}


def rendered() -> dict[str, str]:
    """Return a mapping from the names of the files in FOLDER to their contents."""
    return {f"{name.replace(' ', '-')}.json": json.dumps(schema_of(name), indent=1) + "\n" for name in DOCUMENTS}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for file in FOLDER.glob("*.json"):
        file.unlink()
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
