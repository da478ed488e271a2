"""Stack descriptions: all stacks in the project, rejected files, unknown prices and secrets."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.yard.preview.conftest import DescribeEdited
from yard.preview.describe import PLACEHOLDERS, describe
from yard.preview.report import Report, stack_json
from yard.stack.workspace import stack_names

ROOT = Path(__file__).parents[3]


def test_every_stack_file_is_found() -> None:
    assert [f"Pulumi.{name}.yaml" for name in stack_names()] == sorted(
        file.name for file in (ROOT / "stacks").glob("Pulumi.*.yaml")
    )


@pytest.mark.parametrize("stack", stack_names())
def test_every_stack_has_a_complete_description(stack: str) -> None:
    description = describe(stack)
    described = json.loads(json.dumps(stack_json(Report(description=description))))
    plan, files = described["plan"], description.snapshot.files
    assert described["problems"] == []
    assert plan["hosts"][0]["role"] == "head"
    roles = ["head", *dict.fromkeys(host["group"] for host in plan["hosts"] if host["group"])]
    assert list(described["user_data_bytes"]) == roles
    assert 0 < max(described["user_data_bytes"].values()) <= described["user_data_limit"]
    for role in roles:
        assert f"=== /etc/trainyard/birth.env\nTRAINYARD_CLUSTER={plan['name']}\n" in files[f"user-data of {role}"]
    assert plan["hosts"][-1]["name"].rpartition("-")[0] in files["slurm.conf"]


def test_an_unknown_price_does_not_count_as_zero(edited: DescribeEdited) -> None:
    price = stack_json(Report(description=edited("azure-h100", nodes__gpu__capacity={"kind": "spot"})))["price"]
    assert price["total"] is None
    assert (price["usd"], price["unpriced"]) == (0.384, ["Standard_ND96isr_H100_v5 (Spot)"])
    assert price["dated"] > "2026"
    assert price["regions"] == ["eastus"]
    assert price["sources"]


def test_a_refused_file_has_its_problems(edited: DescribeEdited) -> None:
    described = edited("gcp-a2", nodes__gpu__machine="a2-highgpu-9g", name_="x")
    assert described.plan is None
    assert {found.problem.path for found in described.findings} == {"cluster.name_", "cluster.nodes.gpu.machine"}


def test_a_description_contains_no_secrets(tmp_path: Path) -> None:
    text = (ROOT / "stacks" / "Pulumi.local.yaml").read_text()
    (tmp_path / "Pulumi.x.yaml").write_text(text + "  other:token: hunter2\n  other:more: {secure: v1:abc}\n")
    description = describe("x", tmp_path)
    described = json.dumps([stack_json(Report(description=description)), asdict(description.snapshot)])
    assert "hunter2" not in described
    assert "v1:abc" not in described
    assert PLACEHOLDERS.admin_public in described
