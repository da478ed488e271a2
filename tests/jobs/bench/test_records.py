"""Records of real runs, as docs/benchmarks.md prints them, and made slow on purpose: judged, drawn and refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jobs.bench.collect import counts, summary_of
from jobs.bench.judge import remarks, trouble
from jobs.bench.records import Record, load, save
from jobs.bench.terminal import bars, size_name
from jobs.cli import app
from jobs.errors import BenchError

H200 = {1 << 24: 265.5, 1 << 26: 312.3, 1 << 28: 340.0, 1 << 29: 348.3, 1 << 30: 354.5, 1 << 31: 359.4, 1 << 33: 364.9}
"""docs/benchmarks.md: four H200s of one host, bytes to GB/s of busbw."""


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
    """neox-2.7b with 16 sequences a GPU, from one GPU to four: 15.61 and 60.13 samples/s of 2048 tokens."""
    rates = {1: 15.61 * 2048, 4: 60.13 * 2048}
    rows = [
        {"nodes": nodes, "ranks": nodes, "tokens_per_s": rate, "efficiency": rate / nodes / rates[1]}
        for nodes, rate in rates.items()
    ]
    return record("scaling", rows, floor)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (nccl(300), ""),
        (nccl(None), ""),
        (nccl(300, speed=0.5), "busbw 182.45 GB/s at 8589934592 bytes is below 300 GB/s"),
        (nccl(None, wrong=3), "21 elements came out wrong"),
        (train(500), ""),
        (train(500, reached=432), "432.0 TFLOPS a rank are below 500"),
        (train(None, loss=float("nan")), "the loss is not a number"),
        (scaling(0.95), ""),
        (scaling(0.97), "4 nodes reach 0.96 of 4 times one node, below 0.97"),
        (scaling(None), ""),
    ],
)
def test_slow_or_wrong_runs_fail_with_figures(made: Record, said: str) -> None:
    found = trouble(made)
    assert bool(found) == bool(said)
    assert said in "".join(found)


def test_small_messages_are_not_judged_by_a_floor_of_large_ones() -> None:
    small = nccl(300, speed=0.1)
    small = Record(**{**small.__dict__, "rows": small.rows[:3]})
    assert trouble(small) == []
    assert remarks(small) == ["the largest size, 268435456 bytes, is too small to be judged by 300 GB/s"]
    assert "--min sets one" in remarks(nccl(None))[0]
    assert remarks(nccl(300)) == []


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    lines = bars(nccl(400))
    lengths = {line.split()[0]: line.count("█") for line in lines[2:-1]}
    assert lengths["8G"] == round(364.9 / 400 * 48)
    assert lengths["16M"] == round(265.5 / 400 * 48)
    assert all(line[12 + 48] == "|" for line in lines[2:-1])
    assert lines[-1].endswith("| marks the floor of 400")
    assert lines[-2].endswith("| 364.9")
    assert len(bars(record("train", train().rows * 10))) <= 42
    assert bars(scaling())[-1].endswith("0.963  123146 tokens/s")


@pytest.mark.parametrize(("size", "name"), [(8, "8"), (1 << 20, "1M"), (3 << 30, "3G"), (1000, "1000"), (4096, "4K")])
def test_sizes_have_short_names(size: int, name: str) -> None:
    assert size_name(size) == name


@pytest.mark.parametrize(
    ("most", "found"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_scaling_doubles_up_to_all(most: int, found: list[int]) -> None:
    assert counts(most) == found


def test_the_trainers_last_words_are_found() -> None:
    said = ["step 30", '{"summary": true, "tokens_per_s": 5.0}', "bye"]
    assert summary_of(said)["tokens_per_s"] == 5.0
    for without in (said[:1], ['{"summary": true, "steps_done": 5}']):
        with pytest.raises(BenchError, match="needs more than 10 steps"):
            summary_of(without)


@pytest.mark.parametrize("made", [nccl(300), train(), scaling(0.9)], ids=lambda made: made.kind)
def test_a_record_is_read_as_it_was_written(made: Record, tmp_path: Path) -> None:
    save(made, tmp_path / "x" / "record.json")
    assert load(tmp_path / "x" / "record.json", made.kind) == made


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot be read"),
        ("[]", "is no record of this version"),
        ('{"format": 2}', "is no record of this version"),
        ('{"format": 1, "kind": "nccl"}', "is damaged"),
        (json.dumps({"format": 1, **scaling().__dict__}), "is a record of scaling; use `yard bench scaling --from`"),
        (json.dumps({"format": 1, **nccl().__dict__, "rows": []}), "rows missing"),
        (json.dumps({"format": 1, **nccl().__dict__, "rows": [{"size": 1}]}), "time_us missing"),
    ],
)
def test_what_is_no_record_is_refused(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BenchError, match=said):
        load(tmp_path / "x.json", "nccl")


def yard(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["bench", *words])
    return result.exit_code, result.stdout, result.stderr


def test_a_kept_record_is_judged_anew(tmp_path: Path) -> None:
    save(nccl(300), tmp_path / "r.json")
    code, out, _ = yard("nccl", "--from", str(tmp_path / "r.json"))
    assert (code, out.splitlines()[-1]) == (0, "passed")
    code, _, err = yard("nccl", "--from", str(tmp_path / "r.json"), "--min", "400")
    assert code == 1
    assert "FAILED: busbw 364.90 GB/s" in err
    answer = json.loads(yard("nccl", "--from", str(tmp_path / "r.json"), "--min", "400", "--json")[1])
    assert (answer["passed"], answer["floor"], len(answer["rows"])) == (False, 400.0, 7)


@pytest.mark.parametrize("made", [nccl(300), train(), scaling(0.9)], ids=lambda made: made.kind)
def test_a_picture_is_drawn(made: Record, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plots` is not installed here")
    save(made, tmp_path / "r.json")
    code, out, _ = yard(made.kind, "--from", str(tmp_path / "r.json"), "--out", str(tmp_path / "plots"))
    assert code == 0
    assert f"written: {tmp_path}/plots/r.png" in out
    assert (tmp_path / "plots" / "r.png").read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_rest_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    save(scaling(), tmp_path / "r.json")
    code, out, err = yard("scaling", "--from", str(tmp_path / "r.json"), "--out", str(tmp_path / "plots"))
    assert code == 0
    assert "pip install 'trainyard[plots]'" in err
    assert "0.963" in out
    assert list((tmp_path / "plots").iterdir()) == []
