"""The three output formats of a preview: terminal, Markdown and JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from components.plan.check import Finding, Level
from components.plan.plan import ClusterPlan
from tests.yard.preview.conftest import DescribeEdited
from trainyard.errors import Problem
from yard.preview.account import Account, Verdict
from yard.preview.describe import Description, largest_checkpoint
from yard.preview.difference import FileDiff, compare
from yard.preview.engine import Resources, Step
from yard.preview.printing import MARKER, NOT_INCLUDED, as_markdown, costs, host_ranges, show, total_price
from yard.preview.report import Preview, Report, as_json

VM = "gcp:compute/instance:Instance"
STEPS = (Step(op="create", type=VM, name="neox-head"), Step(op="replace", type=VM, name="neox-gpu-0"))


def preview_of(*reports: Report, offline: bool = True) -> Preview:
    return Preview(offline=offline, base="0123456789abcdef", base_problem=None, reports=reports)


def report(description: Description, before: Description | None = None) -> Report:
    return Report(
        description=description,
        resources=None if description.plan is None else Resources(steps=STEPS, warnings=("a plugin is old",)),
        difference=compare(before.snapshot if before else None, description.snapshot),
    )


def on_terminal(preview: Preview) -> str:
    written = io.StringIO()
    show(preview, Console(file=written, width=200))
    return written.getvalue()


@pytest.fixture
def grown(edited: DescribeEdited) -> Report:
    """The report for a stack with more nodes than in the base revision."""
    return report(edited("gcp-a2", nodes__gpu__count=4), edited("gcp-a2"))


@pytest.fixture
def refused(edited: DescribeEdited) -> Report:
    """The report for an invalid stack with two problems."""
    return report(edited("azure-a100", "bad", nodes__gpu__count=0, head__machine="x<b>|`y`"))


@pytest.mark.parametrize("render", [on_terminal, as_markdown])
def test_unknown_prices_are_named(render: object, edited: DescribeEdited, refused: Report) -> None:
    assert callable(render)
    bastion = report(edited("azure-h100", nodes__gpu__count=1), edited("azure-h100"))
    text = render(preview_of(bastion, refused)).replace("\\", "")
    for words in ("/h plus unknown prices", "bastion-standard: price unknown", "$/h of known prices"):
        assert words in text


@pytest.mark.parametrize("render", [on_terminal, as_markdown])
def test_terminal_and_markdown_show_all_parts(render: object, grown: Report, refused: Report) -> None:
    assert callable(render)
    text = render(preview_of(grown, refused)).replace("\\", "")
    for words in (
        "offline: the clouds are simulated",
        "compared with 0123456789ab",
        "list price $121.44/h",
        "list prices of us-central1, read on 2026-11-23 from Cyclenerd/google-cloud-pricing-cost-calculator at fd66",
        NOT_INCLUDED,
        "+58.77 $/h",
        "adds neox-gpu-[2-3]",
        "10.77.2.1 to 10.77.2.4",
        "8 x a100",
        "NVIDIA_A100_GPUS",
        "user-data: head ",
        "1 to create, 1 to replace",
        "a plugin is old",
        "+NodeName=neox-gpu-[0-3]",
        "refused",
        "cluster.nodes.gpu.count: must be a whole number from 1 to 2000. Fix: ",
        "cluster.head.machine",
    ):
        assert words in text


def test_a_preview_with_a_refused_stack_is_not_fine(grown: Report, refused: Report) -> None:
    assert preview_of(grown).fine
    assert not preview_of(grown, refused).fine
    assert not replace(grown, resources=Resources(steps=(), errors=("no",))).fine


def test_json_has_the_documented_keys(grown: Report, refused: Report) -> None:
    document = json.loads(json.dumps(as_json(preview_of(grown, refused))))
    assert sorted(document) == ["base", "base_problem", "fine", "format", "offline", "stacks"]
    good, bad = document["stacks"]
    assert sorted(good) == sorted(bad)
    expected = (
        "account difference file fine plan price problems quota remarks resources services stack storage "
        "user_data_bytes user_data_limit"
    )
    assert " ".join(sorted(good)) == expected
    assert good["resources"]["changes"][1] == {"op": "replace", "type": VM, "name": "neox-gpu-0"}
    assert bad["resources"] is None


def test_a_comment_never_exceeds_the_limit(grown: Report, refused: Report) -> None:
    assert grown.difference
    grown.difference.files[:] = [FileDiff(file="a", diff="+x\n" * 100_000), FileDiff(file="b", diff="+y\n" * 9_000)]
    whole = as_markdown(preview_of(*[grown] * 3, refused))
    assert len(whole) < 65_536
    assert "truncated; `yard preview" in whole
    many = as_markdown(preview_of(*[grown] * 40, refused))
    assert len(many) < 65_536
    assert "The comment would be too long" in many
    assert many.count("| gcp-a2 | fine |") == 40
    assert "<details open><summary><b>bad</b>" in many


def test_a_stack_file_cannot_inject_markdown(edited: DescribeEdited) -> None:
    problem = Problem(path="cluster.</details>", rule="[x](http://y) @team | `z`", fix="no")
    found = Finding(check="", level=Level.ERROR, problem=problem)
    text = as_markdown(preview_of(report(replace(edited("local"), findings=(found,)))))
    assert text.count("</details>") == 1
    for forbidden in ("[x](", " @team", " `z`"):
        assert forbidden not in text


def test_multi_line_engine_errors_are_fenced(grown: Report) -> None:
    failed = replace(grown, resources=Resources(steps=(), errors=("it died\n```\n<b>",)))
    text = as_markdown(preview_of(failed))
    assert text.startswith(f"{MARKER}\n### Preview of gcp-a2\n")
    assert "- **Error**: \n\n````\nit died\n```\n<b>\n````\n" in text


def test_a_diff_cannot_close_its_code_fence(grown: Report) -> None:
    assert grown.difference
    grown.difference.files[:] = [FileDiff(file="a", diff="+```\n+<b>\n")]
    assert "\n````diff\n+```\n" in as_markdown(preview_of(grown))


def test_usage_and_limits_of_the_account_are_shown(grown: Report) -> None:
    short = Verdict(
        quota="NVIDIA_A100_GPUS", place="us-central1", needed=32, known=True, used=8, limit=16, command="gcloud a"
    )
    unread = replace(short, quota="A2_CPUS", known=False, used=None, limit=None, command="gcloud b")
    known = replace(grown, account=Account(verdicts=(short, unread), notes=("an API is not enabled",)))
    missing = replace(grown, account=Account(problem="gcloud is not on PATH"))
    for render in (on_terminal, as_markdown):
        shown = render(preview_of(known, offline=False))
        assert "short by 24" in shown
        assert "gcloud b" in shown
        assert "an API is not enabled" in shown
        assert "gcloud is not on PATH" in render(preview_of(missing, offline=False))


def test_host_names_are_merged_to_ranges() -> None:
    assert host_ranges(["c-head", "c-a-0", "c-a-1", "c-a-3", "c-b-4"]) == ["c-head", "c-a-[0-1]", "c-a-3", "c-b-4"]


def planned(description: Description) -> ClusterPlan:
    assert description.plan is not None
    return description.plan


def lines(stack: str, edited: DescribeEdited, **edits: object) -> str:
    return "\n".join(costs(planned(edited(stack, **edits))))


def test_storage_and_gateway_have_prices_with_sources(edited: DescribeEdited) -> None:
    spot = {"nodes__gpu__capacity": {"kind": "spot"}}
    text = lines("azure-h100", edited, **spot)
    assert "netapp-Premium $2.48/h ($1,808 a month): list price of an unnamed region, dated 2021-11-04" in text
    assert "bastion-standard: price unknown" in text
    assert "price unknown for Standard_ND96isr_H100_v5 (Spot)" in text
    assert text.endswith(f"not included: {NOT_INCLUDED}")
    assert total_price(planned(edited("azure-h100", **spot))) == "list price $2.86/h plus unknown prices"


def test_recorded_spot_prices_have_a_warning(edited: DescribeEdited) -> None:
    warning = "Spot prices change at any time"
    spot = {"nodes__gpu__capacity": {"kind": "spot"}}
    assert warning in lines("gcp-a2", edited, **spot)
    assert warning not in lines("gcp-a2", edited)
    # No Spot price is recorded for this machine type.
    assert warning not in lines("azure-h100", edited, **spot)


def test_the_total_price_includes_the_storage(edited: DescribeEdited) -> None:
    assert total_price(planned(edited("azure-a100"))) == "list price $66.11/h"
    bastion = edited("azure-a100", access={"via": "bastion"})
    assert total_price(planned(bastion)) == "list price $66.11/h plus unknown prices"


def test_throughput_and_checkpoint_time_are_shown(edited: DescribeEdited) -> None:
    assert (
        "storage head_nfs, 1024 GiB: maximum write throughput 191 MiB/s, 12 MiB/s for each of 16 GPUs, "
        "7.8 minutes to write a checkpoint of opt-6.7b (93 GB)"
    ) in lines("azure-a100", edited)
    assert "storage" not in lines("local", edited)


def test_the_checkpoint_is_of_the_largest_model_that_fits(edited: DescribeEdited) -> None:
    checkpoint = largest_checkpoint(planned(edited("azure-a100", nodes__gpu__count=16, limits={})))
    assert checkpoint is not None
    assert checkpoint.model == "opt-175b"
