"""The report of a cluster."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.yard.conftest import FakeStack, printed, yard
from tests.yard.report.records import BILL, GOODPUT, START, document, throttled
from tests.yard.report.test_report import Page
from trainyard.outputs import Cluster, Prices
from yard.report.cluster import Week, cluster_page
from yard.report.page import page
from yard.report.record import parse
from yard.run.cost import Cost
from yard.run.flight import read, tracking_links

DAY = 86400.0
FIRST, SECOND = parse({**document(), "goodput": GOODPUT, "bill": BILL}), parse(throttled())
WEEK = Week(
    cluster="prod",
    start=START - 7 * DAY,
    end=START,
    jobs=[replace(SECOND.job, name="<b>big</b>"), FIRST.job, replace(FIRST.job, id=3, user="bob", state="FAILED")],
    records={12: SECOND, 7: FIRST},
    costs=[
        Cost(day="2026-11-26", part="h100", hours=48.0, usd=4719.36),
        Cost(day="2026-11-27", part="h100", hours=2.0, usd=196.64),
        Cost(day="2026-11-27", part="head", hours=24.0, usd=4.61),
    ],
    changes=[(START - DAY, "gpu-1", "TY:gpu-xid: Xid 79"), (START - DAY + 600, "gpu-1", "")],
)


def test_the_page_shows_jobs_cost_and_nodes() -> None:
    text = cluster_page(WEEK)
    Page(text)
    assert "Cluster prod: the last 7 days" in text
    assert "$4,920.61" in text, "4719.36 + 196.64 + 4.61"
    assert "<dt>GPU hours</dt><dd>32.9</dd>" in text, "two jobs of 16.44 hours"
    assert "<dt>failed</dt><dd>1</dd>" in text
    assert "&lt;b&gt;big&lt;/b&gt;" in text
    assert "<b>big" not in text
    assert "3 of 16 ranks were 18% slower" in text
    assert "1 job without a readable record" in text
    assert text.index("in service again") < text.index("TY:gpu-xid: Xid 79</td>"), "newest first"


def test_nodes_in_findings_of_several_jobs_are_named() -> None:
    twice = replace(WEEK, records={12: SECOND, 13: replace(SECOND, job=replace(SECOND.job, id=13))})
    text = cluster_page(twice)
    assert "named in findings of several jobs" in text
    assert "12, 13" in text
    assert "named in findings of several jobs" not in cluster_page(WEEK)


def test_a_cluster_without_jobs_and_prices_has_a_page() -> None:
    text = cluster_page(replace(WEEK, jobs=[], records={}, costs=None, changes=[]))
    Page(text)
    assert "No node left service." in text
    assert "no recorded cost" in text


def test_the_command_writes_the_page(stack: FakeStack, local: Cluster, tmp_path: Path) -> None:
    stack.deploy(replace(local, prices=Prices(head=1.0, nodes={"gpu": 2.0})))
    history = json.dumps({"history": {"yard-gpu-0": [{"time": START + 1e9, "reason": "TY:x"}]}})
    stack.program(
        "ssh",
        "case ${*: -1} in\n"
        "*===cost===*) printf '%s head on\\n===cost===\\n%s\\n' $(($(date +%s) - 3600)) $(date +%s) ;;\n"
        f"*repair.json*) echo '{history}' ;;\n"
        "esac",
    )
    file = tmp_path / "week.html"
    found = json.loads(printed("report", "--cluster", "--days", "3", "--output", str(file), "--json"))
    assert (found["days"], found["file"]) == (3, str(file))
    assert "the last 3 days" in file.read_text()
    assert "$1.00" in file.read_text()
    assert "yard-gpu-0" in file.read_text()


def test_a_folder_of_records_is_refused(stack: FakeStack, tmp_path: Path) -> None:
    assert stack.root.exists()
    code, _, err = yard("report", "--cluster", "--records", str(tmp_path))
    assert code == 2
    assert "--records" in err


LOG = """\
wandb: \x1b[33m🚀 View run at \x1b[34mhttps://wandb.ai/team/trainyard/runs/a1b2\x1b[0m
🏃 View run brave at: http://mlflow:5000/#/experiments/0/runs/9f3c
see https://example.org/page and javascript:alert(1)/runs/1
wandb: 🚀 View run at https://wandb.ai/team/trainyard/runs/a1b2
"""


def test_links_at_both_ends_of_a_long_log_are_found(tmp_path: Path) -> None:
    first, second = "https://wandb.ai/team/trainyard/runs/a1b2", "http://mlflow:5000/#/experiments/0/runs/9f3c"
    middle = "step 1: loss 2.0\n" * 200_000
    (tmp_path / "job.log").write_text(f"wandb: View run at {first}\n{middle}View run brave at: {second}\n")
    assert read(tmp_path, tmp_path)["links"] == [first, second]


def test_tracking_services_are_linked() -> None:
    links = ["https://wandb.ai/team/trainyard/runs/a1b2", "http://mlflow:5000/#/experiments/0/runs/9f3c"]
    assert tracking_links(LOG) == links
    text = page(parse(document(links=[*links, "javascript:alert(1)", 'https://x/"><script>/runs/1'])), START)
    Page(text)
    assert '<a href="https://wandb.ai/team/trainyard/runs/a1b2" rel="noreferrer">' in text
    assert "javascript:" not in text
    assert "<script" not in text


def test_a_cluster_without_slurm_has_a_page(stack: FakeStack, local: Cluster, tmp_path: Path) -> None:
    stack.deploy(replace(local, scheduler="none", prices=Prices(head=1.0, nodes={"gpu": 2.0})))
    stack.program("ssh", "case ${*: -1} in *repair.json*) echo '{}' ;; *) echo '[]' ;; esac")
    file = tmp_path / "week.html"
    printed("report", "--cluster", "--output", str(file))
    assert "no recorded cost" in file.read_text()
