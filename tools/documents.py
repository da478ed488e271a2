"""Writes the JSON Schemas of the documents that yard's commands print with --json: python -m tools.documents.

The schemas are in yard/schemas, one file for each command. They are generated from DOCUMENTS, which has the type of
each line that a command prints. tests/yard/test_documents.py compares them with the output of each command.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import make_dataclass
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from yard.doctor.findings import HostProblem
from yard.preview.account import Account
from yard.preview.describe import Quota
from yard.preview.difference import Difference
from yard.preview.engine import Step
from yard.prices import PriceChange
from yard.repair.steps import Case, Decision
from yard.report.findings import Comparison, Finding
from yard.run.bench import Record
from yard.run.cost import Cost, JobBill, JobCost
from yard.run.fair_use import Usage
from yard.run.goodput import Goodput
from yard.run.queue import Job
from yard.run.top import NodeUse, Progress
from yard.stack.hosts import ScannedKey

FOLDER = Path(__file__).parents[1] / "yard" / "schemas"


def _object(name: str, about: str = "", /, *bases: type, **keys: Any) -> Any:
    """Return the type of an object that has `keys` and the keys of `bases`."""
    return make_dataclass(name, keys.items(), bases=bases, namespace={"__doc__": about}, frozen=True, kw_only=True)


def _document(name: str, about: str = "", /, *bases: type, **keys: Any) -> Any:
    """Return the type of an object that also has the version of its format. A new key keeps the version."""
    return _object(name, about, _object("Versioned", version=Literal[1]), *bases, **keys)


def _list(item: Any) -> Any:
    return GenericAlias(list, (item,))


# The formatter would put each key on its own line.
# fmt: off
Texts, Counts, Objects = list[str], dict[str, int], list[dict[str, Any]]
BENCHMARK = _document(
    "Benchmark", "A benchmark's record. `trouble` contains the reasons if `passed` is false.",
    Record, passed=bool, trouble=Texts, file=str | None,
)
CANCELLATION = _document("Cancellation", cancelled=list[int], already_ended=list[int])
CHANGED_NODES = _list(_document("ChangedNode", name=str, state=str, reason=str, changed=bool))
DATASET = _document("Checked", documents=int, tokens=int, token_bytes=int, vocab=int | None, looked_at=int, digest=str)
ENDED_JOB = _document(
    "EndedJob", "`why` is the state as a sentence, and `node_fault` is the fault of a node that is its likely cause.",
    Job, why=str, node_fault=str | None,
)
ESTIMATE = _object(
    "Estimate", "The price of a job on a cluster that does not exist yet. Unknown values are null.",
    source=str, file=str, group=str | None, nodes=int | None, cluster_usd_per_hour=float | None,
    job_usd_per_hour=float | None, limit_s=int | None, usd_at_limit=float | None, max_usd=float | None,
    time_s=float | None,
)
LAYOUTS = _list(_object("Layout", layout=str, recompute=bool, bytes=Counts, fits=bool))
LOG_LINE = _document("LogLine", "A line of a followed log.", line=str)
NEW_STACK = _document(
    "NewStack", stack=str, file=str, price=dict[str, Any] | None, services=Objects, quota=list[Quota], remarks=Objects,
    account=Account | None, host_keys=list[ScannedKey], next=Texts,
)
PROBLEMS = GenericAlias(dict, (str, _list(_object("Problem", "", HostProblem, probe=str))))
RECIPE = _document(
    "Recipe", name=str, about=str | None, nodes=int, launcher=str, container=str | None, environment=str | None,
    software=str | None, smoke=bool, verified=str | None, unverified=str | None,
)
RESOURCES = _object("Resources", by_operation=Counts, by_type=Counts, changes=list[Step], errors=Texts, warnings=Texts)
ROLL_PLAN = _document("RollPlan", group=str, pending=Texts, first=Texts)
ROTATION = _document("Rotation", key=str, urn=str)
STACKS = _list(_object(
    "Stack", "docs/preview.md describes the keys.", stack=str, file=str, fine=bool, problems=Objects, remarks=Objects,
    plan=dict[str, Any] | None, price=dict[str, Any] | None, services=Objects, storage=dict[str, Any] | None,
    quota=list[Quota], user_data_bytes=Counts, user_data_limit=int, resources=RESOURCES | None,
    difference=Difference | None, account=Account | None,
))

DOCUMENTS: Mapping[str, Any] = {
    "bake": _document("Image", name=str, baked_image=str | None),
    "bench nccl": BENCHMARK,
    "bench scaling": BENCHMARK,
    "bench train": BENCHMARK,
    "cancel": CANCELLATION,
    "checks": _list(_document("Check", id=str, level=str, platform=str, rule=str, fixes=Texts)),
    "code": _document(
        "Editor", "The SSH host of a job, its file, and the command for VS Code.", host=str, config=str, command=Texts,
    ),
    "cost": _list(_document("PartCost", "`usd` is null if the price is unknown.", Cost))
    | _list(_document("CostOfJob", "With --jobs.", JobCost))
    | _document("Bill", "With --job.", JobBill),
    "cp": _document("Copy", source=str, target=str),
    "dashboards": _document("Dashboards", files=Texts),
    "data synth": _document("Dataset", synthetic=int, vocab=int, token_bytes=int, documents=int, tokens=int),
    "data verify": DATASET
    | _document("Hosts", whole=bool, hosts=GenericAlias(dict, (str, DATASET)), trouble=dict[str, str]),
    "diff": _document("Differences", "`jobs` are the numbers of both jobs.", Comparison, jobs=list[int]),
    "doctor": _document("Diagnosis", healthy=bool, seconds=float, checks=PROBLEMS, facts=dict[str, list[str]]),
    "drain": CHANGED_NODES,
    "env build": _document("Built", name=str, path=str)
    | _document(
        "DryRun", name=str, system_packages=bool, source=Texts, checkouts=Objects, hashed=bool, locked=bool,
        digest=str, packages=Texts,
    ),
    "env ls": _list(_document(
        "Environment", "`built` is in seconds since 1970, `size` in bytes, and `base` is what the environment extends.",
        folder=str, name=str, python=str, built=int, size=int, seconds=float, base=str | None,
    )),
    "env rm": _document("Removed", removed=Texts),
    "error": _document("Error", "A command that failed. The exit code is not 0.", error=str),
    "heal": _list(_document("RepairStep", "A node's next repair step.", Decision))
    | _document("Explanation", "A node's next repair step, its history and repairs.", Case, Decision, strikes=int),
    "hostfile": _document("HostFile", format=str, lines=Texts),
    "hosts forget": _document("ForgottenHost", forgotten=str),
    "hosts scan": _list(_document("HostKey", "Compare the fingerprint on the host before you use it.", ScannedKey)),
    "init": NEW_STACK,
    "logs": _document("JobLog", "", Job, why=str, rank=int, lines=Texts) | LOG_LINE | ENDED_JOB,
    "new": _object("NewProject", "`files` are the files of the new project.", NEW_STACK, files=Texts),
    "nodes": _list(_document(
        "Host", "`reason` is Slurm's reason, and `why` also contains who set it.",
        name=str, group=str, state=str, reason=str, why=str, private_ip=str, gpus=int, gpu_type=str | None,
    ))
    | _list(_document(
        "Change", "A node left service, or returned to it if `reason` is empty. `time` is in seconds since 1970.",
        time=float, node=str, reason=str,
    )),
    "notebook": _document(
        "Notebook", "`forward` is the ssh command that forwards a port to JupyterLab.", id=int, url=str, forward=Texts,
    ),
    "preview": _document("Preview", offline=bool, base=str | None, base_problem=str | None, fine=bool, stacks=STACKS),
    "prices": _list(_document(
        "Price", "A machine's list price. Unknown prices are null.", provider=str, machine=str, region=str, dated=str,
        source=str, usd_per_hour=float | None, spot_usd_per_hour=float | None, spot_source=str,
    )),
    "prices update": _list(_document("ChangedPrice", "A machine's old and new price.", PriceChange)),
    "pull": _document("Pulled", "`copied` are the numbers of the jobs.", folder=str, copied=list[int], kept=int),
    "top": _document(
        "Top", "`time` is in seconds since 1970. Unknown values are null.", time=float, notices=Texts,
        nodes=list[NodeUse], jobs=_list(_object("RunningJob", "", Job, Progress, why=str)),
    ),
    "ps": _list(_object("ListedJob", "`goodput` is null without --long.", ENDED_JOB, goodput=Goodput | None)),
    "recipes": _list(RECIPE) | RECIPE,
    "refresh": _document("Refreshed", stack=str, cluster=str, ssh_config=str, saved=str | None),
    "replace": ROLL_PLAN,
    "report": _document("Report", job=int, file=str, findings=_list(Finding))
    | _document("ClusterReport", "With --cluster. `jobs` are the numbers of jobs.", jobs=list[int], days=int, file=str),
    "reproduce": _document(
        "Plan", post=str, title=str, stack=str, image=str | None, environments=Texts, commands=Texts,
        figures=Objects, differs=Any,
    )
    | _document("Result", post=str, smoke=bool, seconds=int, figures=Objects, differs=Any),
    "resume": _document("Resumption", id=int, resumes=int, run_dir=str),
    "roll": ROLL_PLAN,
    "rotate": ROTATION,
    "run": _document(
        "Session", "`forward` is null without ports, or if the node is unknown.", argv=Texts, forward=Texts | None,
    ),
    "size": _document(
        "Model", model=str, parameters=int, gpu=str, gpu_gb=float, nodes=int, gpus_per_node=int, fits=bool,
        layouts=LAYOUTS, advice=str,
    ),
    "ssh": _document("Argv", argv=Texts),
    "submit": _document(
        "Submission", "`left_out` names the files that were not sent because they look like secrets.",
        id=int, name=str, run_dir=str, commit=str | None, left_out=Texts,
    )
    | _document(
        "DryRun", "`estimate` is null if the cluster exists. `environment` contains sentences about packages.",
        dry_run=Literal[True], name=str, jobs=int, starts=str, files=dict[str, str], code=dict[str, Any] | None,
        estimate=ESTIMATE | None, environment=Texts,
    )
    | LOG_LINE | ENDED_JOB | CANCELLATION,
    "sync": _document("Sync", dest=str, files=int, changed=Texts, deleted=Texts, left_out=Texts, dry_run=bool),
    "sleep": _document("Sleep", asleep=bool, seconds=float),
    "undrain": CHANGED_NODES,
    "wake": _document("Wake", started=bool, seconds=float),
    "usage": _list(_document("UsedHours", "`usd` is null if the price of a machine is unknown.", Usage)),
    "wait": ENDED_JOB,
}
# fmt: on


def rendered() -> dict[str, str]:
    """Return a mapping from the names of the files in FOLDER to their contents."""
    return {f"{name.replace(' ', '-')}.json": json.dumps(_schema(name), indent=1) + "\n" for name in DOCUMENTS}


def _schema(command: str) -> dict[str, Any]:
    found = TypeAdapter(DOCUMENTS[command]).json_schema(schema_generator=_WithoutTitles)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found, "title": f"yard {command} --json"}


class _WithoutTitles(GenerateJsonSchema):
    """Generates schemas without titles of keys, which would repeat the keys."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def main() -> None:
    for file in FOLDER.glob("*.json"):
        file.unlink()
    for name, text in rendered().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
