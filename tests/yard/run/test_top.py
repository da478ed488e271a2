"""The screen of `yard top`, and its keys in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.yard.conftest import FakeStack, printed
from trainyard.outputs import Cluster, Prices
from yard.run import flight
from yard.run.queue import Job
from yard.run.top import SORTS, Facts, View, entry_of, node_uses, press, screen

JOB = Job(
    id=7, name="train", user="ann", group="gpu", state="RUNNING", reason="None", nodes=2, node_list="yard-gpu-[0-1]",
    elapsed_s=1800, restarts=0, exit_code=0, run_dir="/shared/jobs/train",
)  # fmt: skip
WAITING = replace(JOB, id=8, name="eval", user="bob", state="PENDING", reason="Resources", node_list="", elapsed_s=0)
LAZY = replace(JOB, id=9, name="lazy", nodes=1, node_list="yard-gpu-2", elapsed_s=60)
STEP = {"step": 100, "steps": 10, "step_ms": 250.0, "loss": 2.5, "tokens_per_s": 81920.0, "last_step": 500, "time": 1.0}
RECORDS: dict[str, Any] = {
    "7": {
        "step": STEP,
        "nodes": {
            "yard-gpu-0": [
                1,
                12,
                [[90.0, 600.0, 1900.0, 60.0, 0.0, 40960.0], [80.0, 500.0, 1900.0, 60.0, 0.0, 40960.0]],
            ],
            "yard-gpu-1": [1, 10, [[70.0, None, 1900.0, 60.0, 0.0, 40960.0]], [25.0, 12500.0]],
        },
    },
    "9": {"step": None, "nodes": {"yard-gpu-2": [1, 1, [[0.0, 90.0, 300.0, 30.0, 0.0, 1024.0]]]}},
}


def rows(count: int) -> Iterator[dict[str, Any]]:
    yield {"name": "yard-head", "group": "", "state": "head", "why": "", "gpus": 0}
    for index in range(count):
        state = "allocated" if index < 3 else "idle"
        yield {"name": f"yard-gpu-{index}", "group": "gpu", "state": state, "why": "", "gpus": 2}


@pytest.fixture
def facts(local: Cluster) -> Facts:
    cluster = replace(local, prices=Prices(head=1.0, nodes={"gpu": 30.0}))
    jobs = [LAZY, WAITING, JOB]
    entries = [entry_of(job, cluster, RECORDS.get(str(job.id), {})) for job in jobs]
    nodes = node_uses(jobs, list(rows(4)), RECORDS)
    return Facts(time=1e9, cluster="yard", user="ann", nodes=nodes, jobs=entries)


def drawn(facts: Facts, view: View | None = None, width: int = 80, height: int = 24) -> list[str]:
    console = Console(width=width, height=height, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(screen(facts, view or View(), height))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_progress_and_cost_are_computed(facts: Facts) -> None:
    lazy, waiting, busy = facts.jobs
    assert (busy.step, busy.steps_per_s, busy.left_s, busy.usd) == (100, 4.0, 100.0, 30.0)
    assert busy.gpu_percent == (85 + 70) / 2
    assert (lazy.gpu_percent, lazy.step, lazy.left_s) == (0.0, None, None)
    assert (waiting.gpu_percent, waiting.usd) == (None, 0.0)
    first, second = facts.nodes[1:3]
    assert (first.gpu_percent, first.watts, first.memory_mib, first.job) == (85.0, 1100.0, 81920.0, 7)
    assert (second.watts, second.cpu_percent, second.received_mb_s, second.sent_mb_s) == (None, 10.0, 25.0, 12500.0)


LOST = [None]
"""What flight.py records for a GPU in whose place nvidia-smi prints "Unable to determine the device handle"."""


def test_the_other_gpus_are_shown_next_to_a_lost_one(local: Cluster) -> None:
    good = [90.0, 600.0, 1900.0, 60.0, 0.0, 40960.0]
    records = {"9": {"step": None, "nodes": {"yard-gpu-2": [1, 1, [LOST, good], [1.0, 2.0]]}}}
    node = node_uses([LAZY], list(rows(4)), records)[3]
    assert (node.gpu_percent, node.watts, node.memory_mib) == (90.0, 600.0, 40960.0)
    assert entry_of(LAZY, local, records["9"]).gpu_percent == 90.0


@pytest.mark.parametrize("sample", [[], [1], [1, 2, 3], [1, "x", [1, "x", []], 5], [1, True, [[{}]], [1]]])
def test_a_damaged_sample_counts_as_unknown(sample: list[Any]) -> None:
    node = node_uses([LAZY], list(rows(4)), {"9": {"nodes": {"yard-gpu-2": sample}}})[3]
    assert (node.gpu_percent, node.watts, node.sent_mb_s, node.job) == (None, None, None, 9)


def test_values_that_are_no_usual_numbers_are_unknown(facts: Facts, local: Cluster) -> None:
    step = json.loads('{"step": Infinity, "step_ms": 1e-320, "loss": NaN, "tokens_per_s": true, "last_step": 1e300}')
    entry = entry_of(JOB, local, {"step": step})
    assert (entry.step, entry.steps_per_s, entry.loss, entry.tokens_per_s, entry.left_s) == (None,) * 5
    far = entry_of(JOB, local, {"step": {"step": 0, "step_ms": 1e17, "last_step": 1e17}})
    assert far.left_s is None
    json.dumps(replace(facts, jobs=[entry]).as_json(), allow_nan=False)


def test_the_screen_fits_80_columns_without_colours(facts: Facts) -> None:
    lines = drawn(facts)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "6 of 8 GPUs allocated" in text
    assert "########-- 85 %" in text
    assert "12.5GB/s" in text
    assert "…" not in "".join(line for line in lines if "train" not in line), "only the progress is cut off"
    assert re.search(r" 7 .*ann .*train +RUNNING +2 +30 min +78 % +\$30.00 +step 100, loss 2.5", text)
    assert "waiting for free nodes" in text
    assert "step 100, loss 2.5, 100 s left, 81.9k tokens/s" in "\n".join(drawn(facts, width=160))


@pytest.mark.parametrize("height", [8, 12, 24, 200])
def test_the_screen_fits_the_height(facts: Facts, height: int) -> None:
    many = replace(facts, nodes=node_uses([JOB], list(rows(64)), RECORDS), jobs=[*facts.jobs] * 20)
    lines = drawn(many, height=height)
    assert len(lines) <= height
    assert ("rows do not fit" in lines[-1]) == (height < 200)


def test_text_of_users_cannot_control_the_terminal(facts: Facts) -> None:
    entry = replace(facts.jobs[0], job=replace(JOB, name="\x1b[2J[bold]x"))
    text = "\n".join(drawn(replace(facts, jobs=[entry]), width=160))
    assert "\x1b" not in text
    assert "[bold]x" in text


def test_keys_sort_filter_and_select(facts: Facts) -> None:
    view = View()
    assert [entry.job.id for entry in view.chosen(facts)] == [9, 8, 7]
    for name in [*list(SORTS)[1:], "number"]:
        view = press(view, "s", facts)
        assert view.sort == name
    lazy = View(sort="GPU use").chosen(facts)
    assert [entry.job.id for entry in lazy] == [9, 7, 8], "jobs without use of their GPUs first, unknown use last"
    assert [entry.job.id for entry in press(view, "m", facts).chosen(facts)] == [9, 7]
    for key in "/trx\x7f\r":
        view = press(view, key, facts)
    assert (view.filter, view.typing) == ("tr", False)
    assert [entry.job.id for entry in view.chosen(facts)] == [7]
    assert press(View(filter="x", typing=True), "\x1b", facts).filter == ""
    assert press(press(View(), "down", facts), "down", facts).selected == 8
    assert press(View(selected=7), "down", facts).selected == 7, "the last job stays selected"
    assert press(View(filter="none"), "down", facts).selected is None


def test_newest_records_are_read(tmp_path: Path) -> None:
    (tmp_path / "flight").mkdir()
    (tmp_path / "events").write_text(f"1 saves {tmp_path}/c\n2 start 0 a,b\n9 saves {tmp_path}/c\n9 start 1 a,b\n")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "metrics.jsonl").write_text(f'{json.dumps(STEP)}\n{{"note": 1}}\n{{"step": 1')
    (tmp_path / "flight" / "0-a.jsonl").write_text('{"node": "a"}\n[1, 5, []]\n')
    (tmp_path / "flight" / "1-a.jsonl").write_text('{"node": "a"}\n[2, 6, []]\n[3, 7, [[50.0]]]\n')
    (tmp_path / "flight" / "1-b.jsonl").write_text('{"node": "b"}\n')
    assert flight.now(tmp_path) == {"step": STEP, "nodes": {"a": [3, 7, [[50.0]]]}}
    assert flight.now(tmp_path / "missing") == {"step": None, "nodes": {}}


def test_without_a_terminal_one_screen_is_printed(stack: FakeStack) -> None:
    stack.program("ssh", "case $* in *sinfo*) echo 'yard-gpu-0|idle|none' ;; esac")
    text = printed("top")
    assert "yard-gpu-0" in text
    assert "no jobs" in text


PROGRAM = """
import sys
from yard.run import top
from yard.run.top import Facts
from trainyard.errors import RemoteError
calls = []
def read_facts(remote):
    calls.append(1)
    if len(calls) == 2:
        raise RemoteError("the line is bad")
    return Facts(time=0.0, cluster="yard", user="ann", nodes=[], jobs=[])
top.read_facts = read_facts
top.top(None, 0.5, False)
"""


def test_keys_work_in_a_terminal_while_the_head_does_not_answer() -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment
    ) as process:
        shown = ""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (
            "the line is bad" in shown and shown.rindex("sort by") > shown.rindex("the line is bad")
        ):
            if select.select([ours], [], [], 0.5)[0]:
                shown += os.read(ours, 65536).decode()
        os.write(ours, b"s")
        while time.monotonic() < deadline and "sort by elapsed" not in shown:
            shown += os.read(ours, 65536).decode()
        os.write(ours, b"q")
        while process.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.1)[0]:
                shown += os.read(ours, 65536).decode()
        assert process.wait(5) == 0
    assert termios.tcgetattr(theirs)[3] == before[3]
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", shown) is None, "NO_COLOR"
    os.close(ours)
    os.close(theirs)
