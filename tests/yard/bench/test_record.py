"""Benchmark records: comparison with floors, charts, plots and damaged files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainyard.errors import BenchError
from yard.bench.measure import counts, summary_of
from yard.bench.record import Record, failures, load, notes, save, size_name
from yard.commands.cli import app

H200 = {1 << 24: 265.5, 1 << 26: 312.3, 1 << 28: 340.0, 1 << 29: 348.3, 1 << 30: 354.5, 1 << 31: 359.4, 1 << 33: 364.9}
"""Bus bandwidth in GB/s by message size in bytes, measured on four H200s in one host (docs/dev/benchmarks.md)."""


def record(kind: str, rows: list[dict[str, Any]], floor: float | None = None, **summary: float) -> Record:
    return Record(
        kind=kind,
        cluster="lab",
        group="gpu",
        gpu_type="h200",
        nodes=1,
        ranks=4,
        taken="2026-11-21T12:00:00+00:00",
        floor=floor,
        rows=rows,
        summary=summary,
    )


def nccl(floor: float | None = None, speed: float = 1.0, **change: Any) -> Record:
    rows = [
        {
            "size": size,
            "time_us": size * 1.5 / rate / 1e3,
            "algbw": rate / 1.5,
            "busbw": rate * speed,
            "wrong": 0,
            **change,
        }
        for size, rate in H200.items()
    ]
    return record("nccl", rows, floor)


def train(floor: float | None = None, loss: float = 6.0, reached: float = 547.0) -> Record:
    rows = [{"step": step, "loss": loss, "step_ms": 1310.0, "tokens_per_s": 37400.0} for step in range(1, 31)]
    return record("train", rows, floor, hardware_tflops=reached, tokens_per_s=37400.0)


def scaling(floor: float | None = None) -> Record:
    """neox-2.7b with 16 sequences per GPU: 15.61 samples/s on one GPU and 60.13 samples/s on four GPUs, 2048 tokens
    each."""
    rates = {1: 15.61 * 2048, 4: 60.13 * 2048}
    rows = [
        {"nodes": nodes, "ranks": nodes, "tokens_per_s": rate, "efficiency": rate / nodes / rates[1]}
        for nodes, rate in rates.items()
    ]
    return record("scaling", rows, floor)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (nccl(300), ""),
        (nccl(None), ""),
        (nccl(300, speed=0.5), "busbw 182.45 GB/s at 8589934592 bytes is below the floor of 300 GB/s"),
        (
            nccl(None, wrong=3),
            "21 elements are wrong: a link or a GPU corrupts data; check the hosts with `yard doctor`",
        ),
        (train(500), ""),
        (train(500, reached=432), "432.0 TFLOPS per rank is below 500"),
        (train(None, loss=float("nan")), "the loss is not a number"),
        (scaling(0.95), ""),
        (scaling(0.97), "4 nodes have an efficiency of 0.96, below 0.97"),
        (scaling(None), ""),
    ],
)
def test_slow_or_wrong_runs_fail_with_values(made: Record, message: str) -> None:
    found = failures(made)
    assert bool(found) == bool(message)
    assert message in "".join(found)


def test_small_messages_are_not_compared_with_the_floor() -> None:
    small = nccl(300, speed=0.1)
    small = Record(**{**small.__dict__, "rows": small.rows[:3]})
    assert failures(small) == []
    assert notes(small) == ["the largest size, 268435456 bytes, is too small for the floor of 300 GB/s"]
    assert "set one with --min" in notes(nccl(None))[0]
    assert notes(nccl(300)) == []


@pytest.mark.parametrize(("size", "name"), [(8, "8"), (1 << 20, "1M"), (3 << 30, "3G"), (1000, "1000"), (4096, "4K")])
def test_sizes_are_shown_with_units(size: int, name: str) -> None:
    assert size_name(size) == name


@pytest.mark.parametrize(
    ("most", "found"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_scaling_doubles_the_number_of_nodes(most: int, found: list[int]) -> None:
    assert counts(most) == found


def test_the_summary_of_the_trainer_is_found() -> None:
    message = ["step 30", '{"summary": true, "tokens_per_s": 5.0}', "bye"]
    assert summary_of(message)["tokens_per_s"] == 5.0
    for without in (message[:1], ['{"summary": true, "steps_done": 5}']):
        with pytest.raises(BenchError, match="run more than 10 steps"):
            summary_of(without)


@pytest.mark.parametrize("made", [nccl(300), train(), scaling(0.9)], ids=lambda made: made.kind)
def test_a_saved_record_is_read_unchanged(made: Record, tmp_path: Path) -> None:
    save(made, tmp_path / "x" / "record.json")
    assert load(tmp_path / "x" / "record.json", made.kind, None) == made


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("[]", "is not a record of this version"),
        ('{"format": 2}', "is not a record of this version"),
        ('{"format": 1, "kind": "nccl"}', "is damaged"),
        (
            json.dumps({"format": 1, **scaling().__dict__}),
            "is a record of scaling. Fix: use `yard bench scaling",
        ),
        (json.dumps({"format": 1, **nccl().__dict__, "rows": []}), "rows missing"),
        (json.dumps({"format": 1, **nccl().__dict__, "rows": [{"size": 1}]}), "time_us missing"),
    ],
)
def test_damaged_or_unsuitable_records_are_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BenchError, match=message):
        load(tmp_path / "x.json", "nccl", None)


def yard(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_saved_record_is_compared_with_a_new_floor(tmp_path: Path) -> None:
    save(nccl(300), tmp_path / "r.json")
    code, out, _ = yard("nccl", "--from", str(tmp_path / "r.json"))
    assert (code, out.splitlines()[-1]) == (0, "passed")
    code, _, err = yard("nccl", "--from", str(tmp_path / "r.json"), "--min", "400")
    assert code == 1
    assert "FAILED: busbw 364.90 GB/s" in err
    answer = json.loads(yard("nccl", "--from", str(tmp_path / "r.json"), "--min", "400", "--json")[1])
    assert (answer["passed"], answer["floor"], len(answer["rows"])) == (False, 400.0, 7)


@pytest.mark.parametrize("made", [nccl(300), train(), scaling(0.9)], ids=lambda made: made.kind)
def test_a_plot_is_written(made: Record, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed")
    save(made, tmp_path / "r.json")
    code, out, _ = yard(made.kind, "--from", str(tmp_path / "r.json"), "--out", str(tmp_path / "plots"))
    assert code == 0
    assert f"written: {tmp_path}/plots/r.png" in out
    assert (tmp_path / "plots" / "r.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_only_the_plot_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    save(scaling(), tmp_path / "r.json")
    code, out, err = yard("scaling", "--from", str(tmp_path / "r.json"), "--out", str(tmp_path / "plots"))
    assert code == 0
    assert "pip install 'trainyard[plots]'" in err
    assert "0.963" in out
    assert list((tmp_path / "plots").iterdir()) == []
