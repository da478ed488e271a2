"""Reports and comparisons of recorded jobs: findings, probable causes, the page, and saved records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.yard.conftest import FakeStack, printed, refused, yard
from tests.yard.report.records import BILL, GOODPUT, START, document, metrics, node, throttled
from trainyard.errors import RemoteError
from trainyard.outputs import Cluster, Prices
from yard.report.charts import line_chart, number, ticks
from yard.report.findings import compare, findings, results
from yard.report.page import page
from yard.report.record import Record, parse, parse_starts
from yard.run.queue import Job
from yard.stack.remote import Remote


def kinds(record: Record) -> list[str]:
    return [finding.kind for finding in findings(record)]


def record(**read: Any) -> Record:
    return parse(document(**read))


def changed(path: str, value: Any, raw: dict[str, Any]) -> Record:
    """Return the record of `raw` with another value at a path such as "nodes.0.hardware.health"."""
    *folders, last = path.split(".")
    place: Any = raw["read"]
    for name in folders:
        place = place[int(name) if name.isdigit() else name]
    place[last] = value
    return parse(raw)


def test_a_healthy_job_has_no_findings() -> None:
    assert findings(record()) == []
    assert findings(record(nodes=[], metrics={}, busbw=[], events=[])) == []


@pytest.mark.parametrize(("state", "shown"), [("RUNNING", None), ("COMPLETED", "0")])
def test_a_running_job_has_no_exit_code(state: str, shown: str | None) -> None:
    found = record()
    assert results(replace(found, job=replace(found.job, state=state))).get("exit code") == shown


def test_a_slow_rank_and_a_throttled_gpu_are_named() -> None:
    first, second, third = findings(parse(throttled()))
    assert first.text == "GPU 3 of gpu-2 throttled in 100% of the samples under load (hardware thermal limit)"
    assert (first.nodes, first.ranks) == (("gpu-2",), (11,))
    assert second.text == "3 of 16 ranks were 18% slower (ranks 11-13, on gpu-2)"
    assert third.text.startswith("the job started 2 times and lost 5 min between starts")


def test_a_short_job_has_no_slow_ranks() -> None:
    few = {**metrics(slow=(3,)), "rank_rows": 2}
    assert kinds(record(metrics={**few, "rank_rows": 3})) == ["slow rank"]
    assert kinds(record(metrics=few)) == []


@pytest.mark.parametrize(
    ("path", "value", "kind", "text"),
    [
        ("nodes.0.gpus.2.clock", 1400, "slow clock", "GPU 2 of gpu-0 ran at 1400 MHz under load, and most GPUs"),
        ("nodes.1.hardware.health", "drain TY:ecc: 4", "fault", "gpu-1 had a fault when the job started: drain TY"),
        ("nodes.1.software.GPU driver", "580.1", "unequal nodes",
         "the nodes differ in GPU driver: 570.86.15 (gpu-0); 580.1 (gpu-1)"),
        ("nodes.1.hardware.power limit (W)", "500.00", "unequal nodes", "the nodes differ in power limit (W): 700.00"),
        ("nodes.0.gpus.5.mean_use", 2, "idle GPU", "GPU 5 of gpu-0 was used 2 % of the time"),
        ("busbw", [{"nodes": ["gpu-0", "gpu-1"], "busbw": 210, "floor": 340}], "bandwidth",
         "the bus bandwidth of gpu-0 and gpu-1 was 210 GB/s (median 210, floor 340)"),
        ("metrics.step_ms", [212.0] * 100 + [420.0] * 20 + [212.0] * 280, "slow phase",
         "steps 2,501 to 3,000 took 420.0 ms each, and the median is 212.0 ms"),
        ("metrics.data_ms", [90.0] * 400, "data", "rank 0 waited for data in 42% of the time of a step"),
    ],
)  # fmt: skip
def test_each_rule_finds_its_cause(path: str, value: Any, kind: str, text: str) -> None:
    (found,) = findings(changed(path, value, document()))
    assert found.kind == kind
    assert found.text.startswith(text)


def test_the_difference_to_a_throttled_job_is_explained() -> None:
    found = compare(record(), parse(throttled()))
    assert found.conclusion == "job 12 was 18% slower: a step took 212.0 ms in job 7 and 250.0 ms in job 12"
    assert [cause.kind for cause in found.causes] == ["throttled GPU", "restarts", "nodes"]
    assert found.causes[0].text == (
        "job 12 ran on a node that throttled: 3 of 16 ranks were 18% slower (ranks 11-13, on gpu-2). GPU 3 of gpu-2 "
        "throttled in 100% of the samples under load (hardware thermal limit)"
    )
    assert found.causes[2].text == "the jobs ran on other nodes: names gpu-0, gpu-1 -> gpu-0, gpu-2"
    assert compare(parse(throttled()), record()).causes == found.causes[:2] + tuple(
        replace(cause, text="the jobs ran on other nodes: names gpu-0, gpu-2 -> gpu-0, gpu-1")
        for cause in found.causes[2:]
    )


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda read: read["submitted"]["environment"].update(lock="bbbb"), "environment",
         "the environments differ: lock aaaa -> bbbb"),
        (lambda read: [row["software"].update({"GPU driver": "580.1"}) for row in read["nodes"]], "driver",
         "the GPU drivers differ: GPU driver 570.86.15 -> 580.1"),
        (lambda read: [row.update(network="Socket") for row in read["nccl"].values()], "network",
         "NCCL used another network or plugin: NCCL network IBext_v10 -> Socket"),
        (lambda read: read["busbw"][0].update(algorithm="RING, LL128"), "algorithm",
         "NCCL chose another algorithm in the bandwidth gate: all-reduce algorithm of pairs NVLSTREE, SIMPLE -> "
         "RING, LL128"),
        (lambda read: [row["software"].update(kernel="6.11") for row in read["nodes"]], "software",
         "the software of the nodes differs: kernel 6.8.0-51 -> 6.11"),
        (lambda read: [row["hardware"].update({"power limit (W)": "500.00"}) for row in read["nodes"]], "hardware",
         "the hardware or its settings differ: power limit (W) 700.00 -> 500.00"),
        (lambda read: read["snapshot"].update(commit="beef"), "code", "the code differs: commit 4f2a9c1 -> beef"),
        (lambda read: read["submitted"]["arguments"].update(args="--lr 1"), "arguments",
         "the arguments differ: args --preset 13b --lr 3e-4 -> --lr 1"),
    ],
)  # fmt: skip
def test_each_changed_record_is_a_probable_cause(change: Callable[[Any], Any], kind: str, text: str) -> None:
    slower = document(8, metrics=metrics(step_ms=240))
    change(slower["read"])
    found = compare(record(), parse(slower))
    assert [(cause.kind, cause.text) for cause in found.causes] == [(kind, text)]
    assert found.conclusion.startswith("job 8 was 13% slower")


def test_jobs_of_other_sizes_and_equal_jobs_are_not_called_slower() -> None:
    small = document(8, metrics={**metrics(step_ms=240), "rank_ms": []}, nodes=[node("gpu-0", 0)])
    found = compare(record(), parse(small))
    assert "they had 16 and 8 ranks, so the times are not directly comparable" in found.conclusion
    assert found.causes[0].kind == "world size"
    assert compare(record(), parse(document(8))).conclusion.startswith("jobs 7 and 8 had the same speed")
    assert compare(record(), parse(document(8))).differences == ()
    failed = document(8, metrics={})
    failed["job"].update(state="FAILED", exit_code=1)
    assert (
        "because job 8 recorded no steps; they ended as COMPLETED and FAILED"
        in compare(record(), parse(failed)).conclusion
    )
    assert "because jobs 8 and 8 recorded no steps" in compare(parse(failed), parse(failed)).conclusion


def test_a_hang_and_the_missing_rank_are_named() -> None:
    silent = "rank 0 on gpu-0 has written no heartbeat for 16 s"
    place, missing = (
        "rank 1: in load_batch (job/train.py:8)",
        "process group 0: rank 0 called all_reduce; missing: rank 1",
    )
    start = "job 7, start {}, on gpu-[0-1]"
    (found,) = findings(record(messages=[start.format(0), silent, place, start.format(1)]))
    assert (found.kind, found.text) == ("hang", f"the job hung; {silent}; {place}")
    waits = "rank 0: in all_reduce (distributed_c10d.py:2811), called from step (job/train.py:11)"
    (found,) = findings(record(messages=[start.format(0), silent, waits, place, start.format(1)]))
    assert found.text == f"the job hung; {silent}; {waits}; {place}", "the rarest place is unknown"
    (found,) = findings(record(messages=[start.format(0), silent, place, missing, start.format(1)]))
    assert found.text == f"the job hung; {silent}; {missing}"
    (found,) = findings(record(messages=[start.format(0), missing]))
    assert found.text == f"the job hung; {missing}", "after NCCL's timeout"


def test_starts_are_counted_without_records_of_steps() -> None:
    events = [
        f"{START} start 0 gpu-0",
        f"{START + 9} failed 1 gpu-0",
        f"{START + 10} start 1 gpu-0",
        f"{START + 20} end 0",
    ]
    (found,) = findings(record(events=events))
    assert found.text == "the job started 2 times: start 0 failed with exit code 1 on gpu-0"


def test_slow_first_steps_and_single_slow_steps_are_no_slow_phase() -> None:
    usual = [212.0] * 400
    for slow in (range(1), range(0, 400, 40), range(7, 9)):
        values = [900.0 if index in slow else value for index, value in enumerate(usual)]
        assert findings(changed("metrics.step_ms", values, document())) == []


def test_starts_and_the_causes_of_their_ends_are_read_from_events() -> None:
    events = (
        "100 saves /shared/x", "100 start 0 gpu-[0-1]", "150 start 1 gpu-[0-1]", "200 failed 1 gpu-1",
        "200 fault gpu-1 190 TY:gpu-xid: Xid 79", "201 requeue failure 1 of at most 2", "300 start 2 gpu-[0,2]",
        "damaged", "400 end 0",
    )  # fmt: skip
    assert [(start.number, start.end, start.cause) for start in parse_starts(events)] == [
        (0, None, "it lost a node, or was requeued"),
        (1, 201.0, "failed with exit code 1 on gpu-1; gpu-1 had the fault TY:gpu-xid: Xid 79; failure 1 of at most 2"),
        (2, 400.0, "completed"),
    ]
    assert [start.cause for start in parse_starts(["1 start 0 a", "9 end 143"])] == ["ended with exit code 143"]
    assert [start.end for start in parse_starts(["1 start 0 a"])] == [None]


class Page(HTMLParser):
    """The tags, attributes and ids of a page. Raises AssertionError for unbalanced tags."""

    VOID = frozenset({"meta", "rect", "line", "path", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def test_the_page_is_complete_and_needs_no_network() -> None:
    text = page(parse(throttled()), START)
    found = Page(text)
    tags = [tag for tag, _ in found.seen]
    headings = [tag for tag in tags if re.fullmatch("h[1-6]", tag)]
    assert headings == ["h1"] + ["h2"] * 7
    assert not {"script", "link", "img", "iframe", "object", "form", "base"} & set(tags)
    assert not re.search(r"https?:|//|url\(|@import|@font-face", text.replace("<!DOCTYPE html>", ""))
    assert "default-src 'none'" in text
    ids = [attributes["id"] for _, attributes in found.seen if "id" in attributes]
    links = [str(attributes["href"]) for tag, attributes in found.seen if tag == "a"]
    assert sorted({link.removeprefix("#") for link in links}) == sorted(str(name) for name in ids)
    assert len(ids) == len(set(ids))
    images = [attributes for tag, attributes in found.seen if tag == "svg"]
    assert len(images) == 7
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in images)
    scrolls = [attributes for _, attributes in found.seen if attributes.get("class") == "scroll"]
    assert all(attributes["tabindex"] == "0" and attributes["aria-label"] for attributes in scrolls)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    for part in (
        "GPU 3 of gpu-2 throttled",
        "Goodput 62%",
        "$202.10",
        "Xid 79",
        "--preset 13b --lr 3e-4",
        "372.5",
        "NVLSTREE, SIMPLE",
        "job 7, start 0",
    ):
        assert part in text, part


def test_text_of_a_job_cannot_add_markup(tmp_path: Path) -> None:
    bad = "\"><script>alert(1)</script><b x='\x1b[31m"

    def spoil(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                (f"{name}{bad}" if name in {"args", "kernel"} else name): spoil(item) for name, item in value.items()
            }
        if isinstance(value, list):
            return [spoil(item) for item in value]
        return value + bad if isinstance(value, str) else value

    raw = spoil(throttled())
    text = page(parse({**raw, "goodput": GOODPUT, "bill": BILL}), START)
    assert {tag for tag, _ in Page(text).seen} == {tag for tag, _ in Page(page(parse(throttled()), START)).seen}
    assert "\x1b" not in text
    assert text.count("alert(1)") > 20


@pytest.mark.parametrize("value", [None, [], {}, "x", 1e400, -1, True, [None], ["x"], [[1]], {"a": {"b": 1}}])
def test_damaged_records_do_not_prevent_a_report(value: Any) -> None:
    whole, other = throttled(metrics=metrics(20, slow=(3,))), record(metrics={})
    text = json.dumps(whole)

    def paths(item: Any) -> list[list[Any]]:
        if isinstance(item, dict):
            return [[name, *rest] for name, inner in item.items() for rest in [[], *paths(inner)]]
        return [[0, *rest] for rest in [[], *paths(item[0])]] if isinstance(item, list) and item else []

    for path in paths(whole["read"]):
        raw = json.loads(text)
        place = raw["read"]
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        found = parse(raw)
        compare(found, other)
        if len(path) <= 2 or path[-2:] == ["gpus", 0]:
            assert page(found, START)


@pytest.mark.parametrize("steps", [[500], [20_000_000], [10**17, 10**17], [0]])
def test_a_chart_can_have_a_single_place(steps: list[int]) -> None:
    columns = {name: [1.0] * len(steps) for name in ("loss", "step_ms", "slowest_ms", "tokens_per_s", "data_ms")}
    text = page(record(metrics={"step": steps, "count": 1, "median_ms": 1.0, **columns}), START)
    assert "Time of a step" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    "read",
    [
        {"events": [f"{'9' * 5000} start 0 a", f"{START} start {'9' * 5000} a", f"{'9' * 400} end 0"]},
        {"metrics": {"rank_ms": [0, 0, 5], "rank_rows": 9}},
        {"submitted": {"placement": {"nodes": "9" * 5000, "ranks per node": "8"}}, "nodes": []},
        {"nodes": [node("a", -1), node("b", 0, tasks=-8)]},
    ],
)
def test_values_outside_the_usual_range_do_not_prevent_a_report(read: dict[str, Any]) -> None:
    found = record(**read)
    assert page(found, START)
    assert compare(found, record())


@pytest.mark.parametrize("change", [{"wall_s": 0.0}, {"useful_s": float("nan")}, {"goodput": 1e300}])
def test_a_goodput_without_usual_numbers_is_unknown(change: dict[str, Any]) -> None:
    found = parse({**document(), "goodput": {**GOODPUT, **change}})
    assert found.goodput is None
    assert page(found, START)


def test_the_page_of_a_long_job_on_many_nodes_is_small() -> None:
    """The bound is in size, not in time: a report of 10,000 steps and 512 GPUs has at most 2 MB."""
    many = [node(f"gpu-{at}", at) for at in range(64)]
    text = page(record(metrics=metrics(10_000), nodes=many), START)
    assert len(text) < 2_000_000
    assert text.count("<rect") < 2 * 64 * 60 + 100
    assert "GPU use of each node over time" in text
    assert "(the first 256 of 512 lines)" in text


def test_axes_have_round_numbers() -> None:
    assert ticks(0, 97) == [0, 20, 40, 60, 80]
    assert ticks(2.31, 2.39) == pytest.approx([2.32, 2.34, 2.36, 2.38])
    assert ticks(5, 5) != []
    assert [number(value) for value in (0, 0.00251, 12, 9999, 12_000, 490_000, 3_200_000)] == [
        "0", "0.00251", "12", "9999", "12k", "490k", "3.2M",
    ]  # fmt: skip
    assert line_chart("a", ("x", "y"), (1.0,), {"b": (None,)}, zero=True) == ""
    gap = line_chart("a", ("x", "y"), (1.0, 2.0, 3.0, 4.0), {"b": (1.0, None, 3.0, 9.0)}, zero=True, cap=3.0)
    assert gap.count("M") - gap.count("M0") == 2
    assert "Values above 3 are cut off" in gap


# --- the commands -----------------------------------------------------------------------------------------------------

JOB = "JobId={id} JobName=train UserId=trainer(1) JobState={state} RunTime=01:00:00 WorkDir=/shared/jobs/train-{id}\n"
SSH = """
cd {folder}
all=$*
case $all in
  *'show jobs'*) cat jobs; echo ===sacct=== ;;
  *'show job '*) job=${{all##*show job }}; grep "JobId=${{job%% *}} " jobs ;;
  *' read '*) cat >/dev/null; for word in ${{all##* read }}; do [[ $word != *=* ]] || cat "read-${{word%%=*}}"; done ;;
  *sacct*) ;;
  *) cat >/dev/null; echo '{{}}' ;;
esac
"""
Answer = Callable[..., Any]


@pytest.fixture
def head(stack: FakeStack, local: Cluster) -> Answer:
    """Return a function that lets a fake ssh answer with the records of jobs. It returns the fake ssh."""

    def answer(*raw: dict[str, Any], state: str = "COMPLETED") -> Any:
        stack.deploy(replace(local, prices=Prices(nodes={"gpu": 98.32})))
        jobs = [JOB.format(id=each["job"]["id"], state=state if each is raw[-1] else "COMPLETED") for each in raw]
        (stack.root / "jobs").write_text("".join(reversed(jobs)))
        for each in raw:
            job = each["job"]["id"]
            (stack.root / f"read-{job}").write_text(json.dumps({"id": job, **each["read"]}) + "\n")
        return stack.program("ssh", SSH.format(folder=stack.root))

    return answer


@pytest.mark.parametrize("job", ["12", "last"])
def test_the_command_writes_a_report(head: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    head(document(), throttled())
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    out = printed("report", *([] if job == "last" else [job]))
    assert "throttled GPU: GPU 3 of gpu-2 throttled in 100%" in out
    assert f"the report of job 12 is in {tmp_path}/here/report-12.html" in out
    assert "<h1>Job 12: train</h1>" in (tmp_path / "here" / "report-12.html").read_text()
    found = json.loads(printed("report", "7", "--output", "a.html", "--json"))
    assert (found["file"], found["findings"]) == (f"{tmp_path}/here/a.html", [])
    assert "no/a.html cannot be written" in refused("report", "7", "--output", "no/a.html")


def test_the_report_opens_in_the_browser(head: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head(document())
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    printed("report", "7", "--open", "--output", f"{tmp_path}/a b.html")
    assert opened == [f"file://{tmp_path}/a%20b.html"]


def test_the_command_prints_the_difference_of_two_jobs(head: Answer) -> None:
    head(document(), throttled())
    out = printed("diff", "7", "12")
    assert out.startswith(
        "job 12 was 18% slower: a step took 212.0 ms in job 7 and 250.0 ms in job 12\n  job 12 ran on a"
    )
    assert re.search(r"nodes +names +gpu-0, gpu-1 +gpu-0, gpu-2", out)
    found = json.loads(printed("diff", "12", "7", "--json"))
    assert found["jobs"] == [12, 7]
    assert found["causes"][0]["kind"] == "throttled GPU"


def test_records_remain_on_this_computer(head: Answer, tmp_path: Path) -> None:
    ssh = head(document(), throttled(), state="RUNNING")
    folder = f"{tmp_path}/records"
    assert "copied 2 records" in printed("pull", "--records", folder)
    assert (tmp_path / "records" / "7.json").stat().st_mode & 0o777 == 0o600
    head(document(), throttled())
    found = json.loads(printed("pull", "--records", folder, "--json"))
    assert (found["copied"], found["kept"]) == ([12], 1), "a job that was running is copied again"
    assert json.loads(printed("pull", "--records", folder, "--json"))["copied"] == []
    before = len(ssh.calls)
    assert "job 12 was 18% slower" in printed("diff", "7", "12", "--records", folder)
    assert "report of job 12" in printed("report", "--records", folder, "--output", f"{tmp_path}/a.html")
    assert len(ssh.calls) == before, "a folder needs no cluster"
    assert f"{folder} has no record of job 9; its jobs: 7 to 12" in refused("report", "9", "--records", folder)
    (tmp_path / "records" / "12.json").write_text('{"version": 1, "job": {"id": 12}}')
    assert "12.json cannot be read: its job is damaged" in refused("report", "12", "--records", folder)
    (tmp_path / "records" / "12.json").write_text('{"version": 2}')
    assert "this version of yard reads 1" in refused("report", "12", "--records", folder)


def test_records_of_another_cluster_are_not_mixed(head: Answer, tmp_path: Path) -> None:
    head(document())
    folder = tmp_path / "records"
    folder.mkdir()
    (folder / "7.json").write_text(json.dumps(document()))
    assert "contains records of cluster 'prod'. Fix: use a folder for each cluster" in refused(
        "pull", "--records", str(folder)
    )


def test_lines_of_the_owner_do_not_prevent_the_reports_of_others(
    head: Answer, stack: FakeStack, tmp_path: Path
) -> None:
    head(document(), throttled())
    with (stack.root / "read-7").open("a") as file:
        for line in ("[1]", "no JSON", '{"id": 99}', '{"id": [7]}', "[" * 100_000):
            file.write(f"{line}\n")
    found = json.loads(printed("pull", "--records", str(tmp_path / "kept"), "--json"))
    assert found["copied"] == [7, 12]


def test_records_of_other_users_are_copied_next_to_unreadable_ones(
    head: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head(document(), throttled())
    known: list[int] = []

    def fails(remote: Remote, jobs: Sequence[Job], folder: str) -> dict[str, Any]:
        known.extend(job.id for job in jobs)
        if jobs[0].id == 7:
            raise RemoteError("python3: no such module")
        return {}

    monkeypatch.setattr("yard.report.record.goodputs_of", fails)
    monkeypatch.setattr("yard.report.record._AT_ONCE", 1)
    _, out, err = yard("pull", "--records", str(tmp_path / "kept"), "--json")
    assert (sorted(known), json.loads(out)["copied"]) == ([7, 12], [12])
    assert "the records of 1 job of trainer cannot be read: python3: no such module" in err


def test_a_damaged_record_is_not_copied(head: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head(document(), throttled())
    monkeypatch.setattr("yard.report.record.goodputs_of", lambda *_: {"7": {"goodput": "x"}})
    for _ in range(2):
        found = json.loads(printed("pull", "--records", str(tmp_path / "kept"), "--json"))
        assert not (tmp_path / "kept" / "7.json").exists()
    assert (found["copied"], found["kept"]) == ([], 1)


def test_a_job_without_a_run_folder_has_no_record(stack: FakeStack) -> None:
    stack.program("ssh", "echo 'JobId=7 JobName=x UserId=trainer(1) JobState=COMPLETED WorkDir=/home/x'")
    assert "job 7 was not submitted with `yard submit`, so it has no record" in refused("report", "7")
    assert yard("diff", "7")[0] == 2
