"""The three forms of a preview: what each must say, and what none may do."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from jobs.preview import markdown, terminal
from jobs.preview.compare import compare
from jobs.preview.report import Preview, Report, as_json, host_ranges
from jobs.preview.resources import Resources, Step
from jobs.preview.shape import Description
from jobs.preview.words import costs, money
from jobs.quota.verdict import AccountAnswer, QuotaVerdict
from tests.jobs.preview.conftest import DescribeEdited

VM = "gcp:compute/instance:Instance"
STEPS = (Step(op="create", type=VM, name="neox-head"), Step(op="replace", type=VM, name="neox-gpu-0"))


def seen(*reports: Report, offline: bool = True) -> Preview:
    return Preview(offline=offline, base="0123456789abcdef", base_problem=None, reports=reports)


def report(description: Description, before: Description | None = None) -> Report:
    return Report(
        description=description,
        resources=None if description["problems"] else Resources(steps=STEPS, warnings=("a plugin is old",)),
        difference=compare(before, description),
    )


def on_terminal(preview: Preview) -> str:
    written = io.StringIO()
    terminal.show(preview, Console(file=written, width=200))
    return written.getvalue()


@pytest.fixture
def grown(edited: DescribeEdited) -> Report:
    """A stack that becomes larger."""
    return report(edited("gcp-a2", nodes__gpu__count=4), edited("gcp-a2"))


@pytest.fixture
def refused(edited: DescribeEdited) -> Report:
    """A stack with two problems."""
    return report(edited("azure-a100", "bad", nodes__gpu__count=0, head__machine="x<b>|`y`"))


@pytest.mark.parametrize("render", [on_terminal, markdown.render])
def test_what_people_must_read(render: object, grown: Report, refused: Report) -> None:
    assert callable(render)
    text = render(seen(grown, refused)).replace("\\", "")
    for words in (
        "offline: every cloud is simulated",
        "compared with 0123456789ab",
        "$117.56/h and unknown prices",
        "no price is recorded for n2-standard-8",
        "+58.78 $/h of known prices",
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


def test_a_preview_with_a_bad_stack_is_not_fine(grown: Report, refused: Report) -> None:
    assert seen(grown).fine
    assert not seen(grown, refused).fine
    assert not replace(grown, resources=Resources(steps=(), errors=("no",))).fine


def test_json_has_the_documented_keys(grown: Report, refused: Report) -> None:
    document = json.loads(json.dumps(as_json(seen(grown, refused))))
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


def test_a_comment_fits_whatever_is_in_it(grown: Report, refused: Report) -> None:
    assert grown.difference
    for file in grown.difference["files"]:
        file["diff"] = "+x\n" * 100_000
    whole = markdown.render(seen(*[grown] * 3, refused))
    assert len(whole) < 65_536
    assert "cut here" in whole
    many = markdown.render(seen(*[grown] * 40, refused))
    assert len(many) < 65_536
    assert "Too long for one comment" in many
    assert many.count("| gcp-a2 | fine |") == 40
    assert "<details open><summary><b>bad</b>" in many


def test_a_stack_file_cannot_write_into_the_comment(edited: DescribeEdited) -> None:
    described = edited("local")
    described["problems"] = [
        {"check": "", "level": "error", "path": "cluster.</details>", "rule": "[x](http://y) @team | `z`", "fix": "no"}
    ]
    text = markdown.render(seen(report(described)))
    assert text.count("</details>") == 1
    for forbidden in ("[x](", " @team", " `z`"):
        assert forbidden not in text


def test_what_an_engine_writes_in_lines_stays_in_lines(grown: Report) -> None:
    failed = replace(grown, resources=Resources(steps=(), errors=("it died\n```\n<b>",)))
    text = markdown.render(seen(failed))
    assert text.startswith(f"{markdown.MARKER}\n### Preview of gcp-a2\n")
    assert "- **Error**: \n\n````\nit died\n```\n<b>\n````\n" in text


def test_a_diff_cannot_end_its_own_fence(grown: Report) -> None:
    assert grown.difference
    grown.difference["files"][0]["diff"] = "+```\n+<b>\n"
    assert "\n````diff\n+```\n" in markdown.render(seen(grown))


def test_what_the_account_has_stands_beside_what_is_needed(grown: Report) -> None:
    short = QuotaVerdict(
        quota="NVIDIA_A100_GPUS", place="us-central1", needed=32, known=True, used=8, limit=16, command="gcloud a"
    )
    unread = replace(short, quota="A2_CPUS", known=False, used=None, limit=None, command="gcloud b")
    known = replace(grown, account=AccountAnswer(verdicts=(short, unread), notes=("an API is not enabled",)))
    missing = replace(grown, account=AccountAnswer(problem="gcloud is not on PATH"))
    for render in (on_terminal, markdown.render):
        shown = render(seen(known, offline=False))
        assert "short by 24" in shown
        assert "gcloud b" in shown
        assert "an API is not enabled" in shown
        assert "gcloud is not on PATH" in render(seen(missing, offline=False))


def test_ranges_of_hosts() -> None:
    assert host_ranges(["c-head", "c-a-0", "c-a-1", "c-a-3", "c-b-4"]) == ["c-head", "c-a-[0-1]", "c-a-3", "c-b-4"]


def lines(stack: str, edited: DescribeEdited, **edits: object) -> str:
    return "\n".join(costs(edited(stack, **edits)))


def test_storage_and_gateway_are_priced_or_unknown(edited: DescribeEdited) -> None:
    spot = {"nodes__gpu__capacity": {"kind": "spot"}}
    said = lines("azure-h100", edited, **spot)
    assert "netapp-Premium $2.48/h ($1,808 a month) by the list price of an unnamed region of 2021-11-04" in said
    assert "bastion-standard price unknown" in said
    assert "no price is recorded for Standard_ND96isr_H100_v5 (Spot)" in said
    assert "not included: boot disks, public addresses, NAT, traffic" in said
    assert money(edited("azure-h100", **spot)) == "$2.86/h and unknown prices"


def test_the_price_of_a_stack_includes_its_storage(edited: DescribeEdited) -> None:
    assert money(edited("azure-a100")) == "$66.11/h"
    bastion = edited("azure-a100", access={"via": "bastion"})
    assert money(bastion) == "$66.11/h and unknown prices"


def test_the_storages_speed_is_shown_with_a_checkpoint(edited: DescribeEdited) -> None:
    assert (
        "storage head_nfs, 1024 GiB: writes at most 191 MiB/s, 12 MiB/s for each of 16 GPUs, "
        "7.8 minutes for a checkpoint of opt-6.7b (93 GB)"
    ) in lines("azure-a100", edited)
    assert "storage" not in lines("local", edited)


def test_a_larger_stack_has_a_larger_model(edited: DescribeEdited) -> None:
    storage = edited("azure-a100", nodes__gpu__count=16, limits={})["storage"]
    assert storage is not None
    assert storage["checkpoint"] is not None
    assert storage["checkpoint"]["model"] == "opt-175b"
