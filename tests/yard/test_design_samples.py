"""The samples in docs/dev/design.md match the output of the current code."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import pytest

from components.node.parameters import node_env
from components.node.slurm import render_gres_conf, render_slurm_conf
from components.plan.plan import ClusterPlan
from tests.conftest import ROOT
from yard.job.loader import load_job
from yard.job.placement import place

DESIGN = ROOT / "docs" / "dev" / "design.md"
BLOCK = re.compile(r"(<!-- sample: ([a-z-]+) -->\n```[a-z]*\n)(.*?)(```\n)", re.DOTALL)
NODE_ENV = ("NODE", "ROLE", "GROUP", "PRIVATE_IP", "HEAD_IP", "GPUS", "GPU_DEVICE", "SCHEDULER")


def text_of(value: Any) -> str:
    """Return a value as text, or an empty string if it is not a string, number, tuple or mapping."""
    if isinstance(value, tuple):
        return ", ".join(item if isinstance(item, str) else item.name for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return str(value).strip() if isinstance(value, str | int) else ""


def rows(thing: Any) -> str:
    """Return the dataclass fields that differ from their defaults, one per line."""
    changed = [field for field in dataclasses.fields(thing) if getattr(thing, field.name) != field.default]
    texts = [(field.name, text_of(getattr(thing, field.name))) for field in changed]
    return "".join(f"{name}: {text}\n" for name, text in texts if text)


def matching(text: str, pattern: str) -> str:
    """Return the lines in a text that begin with a match of the pattern."""
    return "".join(line for line in text.splitlines(keepends=True) if re.match(pattern, line))


def samples(plan: ClusterPlan, cluster: Any) -> dict[str, str]:
    """Return the samples for both walks by name. `cluster` contains the outputs of the stack `local`."""
    stack = (ROOT / "stacks" / "Pulumi.local.yaml").read_text()
    hosts = [
        f"{host.name:<11} {host.role.value:<7} {host.private_ip!s:<10} {host.machine.name:<8} slot {host.slot}\n"
        for host in plan.hosts
    ]
    return {
        "stack": matching(stack, r"    (name|network|head|nodes)|      gpu:"),
        "plan": "".join(hosts),
        "node-env": matching(node_env(plan, plan.workers[0]), rf"TRAINYARD_({'|'.join(NODE_ENV)})="),
        "slurm": matching(render_slurm_conf(plan), "NodeName=|PartitionName=")
        + matching(render_gres_conf(plan), "NodeName="),
        "placement": rows(place(load_job("hello", {}, {}, []), cluster)),
    }


def test_samples_are_current(local_plan: ClusterPlan, local: Any, request: pytest.FixtureRequest) -> None:
    expected = samples(local_plan, local)
    if request.config.getoption("--update-golden"):
        DESIGN.write_text(BLOCK.sub(lambda old: old[1] + expected[old[2]] + old[4], DESIGN.read_text()))
    found = {match[2]: match[3] for match in BLOCK.finditer(DESIGN.read_text())}
    assert found == expected, "docs/dev/design.md is outdated; rewrite it with --update-golden and review it"
