"""The all-reduce benchmark: arithmetic, table format, and problems."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from yard.workloads import allreduce

WORKLOAD = Path(allreduce.__file__)
HAS_TORCH = importlib.util.find_spec("torch") is not None


def result(size: int, seconds: float, ranks: int, wrong: int = 0) -> dict[str, Any]:
    """Return the result for one size in the format of Bench.run."""
    rates = {"algbw": size / seconds / 1e9, "busbw": allreduce.busbw(size, seconds, ranks)}
    return {"size": size, "count": size // 4, "type": "float32", "time_us": seconds * 1e6, **rates, "wrong": wrong}


def test_sizes_use_the_notation_of_nccl_tests() -> None:
    sizes = {"8": 8, "4K": 4096, "16m": 1 << 24, "8G": 1 << 33}
    assert {text: allreduce.parse_size(text) for text in sizes} == sizes
    assert list(allreduce.sweep(8, 64, 2)) == [8, 16, 32, 64]
    assert list(allreduce.sweep(8, 63, 2)) == [8, 16, 32]


@pytest.mark.parametrize("text", ["", "G", "8T", "-8", "1.5G", "8 G"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        allreduce.parse_size(text)


@pytest.mark.parametrize(
    ("size", "micros", "algbw", "busbw"),
    [
        # nccl-tests results for two machines with eight A100s each, from Azure's post on all-reduce with Slurm.
        (2147483648, 21495, 99.91, 187.33),
        (4294967296, 42741, 100.49, 188.42),
        (8589934592, 84929, 101.14, 189.64),
    ],
)
def test_bandwidths_match_nccl_tests(size: int, micros: float, algbw: float, busbw: float) -> None:
    assert size / (micros / 1e6) / 1e9 == pytest.approx(algbw, abs=0.01)
    assert allreduce.busbw(size, micros / 1e6, 16) == pytest.approx(busbw, abs=0.01)


def test_row_has_the_columns_of_nccl_tests() -> None:
    row, names = allreduce.row(result(1 << 30, 0.005, 4)), allreduce.header().splitlines()[1]
    columns = row.split()
    assert columns[:5] == ["1073741824", "268435456", "float", "sum", "-1"]
    assert columns[5:9] == ["-"] * 4  # torch has no out-of-place all-reduce
    assert [float(text) for text in columns[9:]] == [5000.0, 214.75, 322.12, 0]
    assert (len(names), len(names.lstrip("#").split())) == (len(row), len(columns))


@pytest.mark.parametrize(
    ("results", "floor", "printed"),
    [
        ([result(1 << 30, 0.005, 4)], None, []),
        ([result(1 << 30, 0.005, 4)], 322, []),
        ([result(1 << 30, 0.005, 4)], 323, ["busbw 322.12 GB/s at 1073741824 bytes is below the floor of 323 GB/s"]),
        # The floor applies to the largest size only, because small messages are slow on every fabric.
        ([result(8, 0.005, 4), result(1 << 30, 0.005, 4)], 322, []),
        (
            [result(8, 1e-5, 4, wrong=2), result(16, 1e-5, 4, wrong=1)],
            0,
            ["3 elements are wrong: a link or a GPU corrupts data"],
        ),
        ([], None, ["no size fits into memory"]),
    ],
)
def test_slow_or_wrong_results_are_problems(
    results: list[dict[str, Any]], floor: float | None, printed: list[str]
) -> None:
    assert allreduce.problems(results, floor) == printed


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["-f", "1"], "-f must be at least 2"),
        (["--iters", "0"], "--iters at least 1"),
        (["--max-seconds", "0"], "--max-seconds greater than 0"),
        (["-b", "1G", "-e", "1M"], "-b 1073741824 is greater than -e 1048576"),
        (["-e", "8T"], "invalid parse_size value: '8T'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: list[str], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        allreduce.parse(arguments)
    assert printed in capsys.readouterr().err
    assert allreduce.parse(["--min-busbw", ""]).min_busbw is None


@pytest.mark.parametrize(
    ("one", "limit", "expected"),
    [(0.012, 20, 20), (4.0, 20, 5), (12.5, 20, 1), (36.0, 20, 1), (36.0, None, 20), (0.0, 20, 20)],
)
def test_a_slow_network_reduces_the_iterations(one: float, limit: float | None, expected: int) -> None:
    assert allreduce.repetitions(20, one, limit) == expected


def gloo_ranks(tmp_path: Path, ranks: int, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """Run the benchmark on the CPU, with one process per rank."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, str(WORKLOAD), "-b", "8", "-e", "4K", "-f", "8", "--iters", "2", "--warmup", "1",
             "--json", str(tmp_path / "out.json"), *arguments],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    done = []
    for process in started:
        out, err = process.communicate(timeout=120)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_two_ranks_measure_over_gloo(tmp_path: Path) -> None:
    first, second = gloo_ranks(tmp_path, 2)
    assert (first.returncode, second.returncode, second.stdout) == (0, 0, ""), first.stderr + second.stderr
    rows = [line.split() for line in first.stdout.splitlines() if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [8, 64, 512, 4096]
    assert [row[-1] for row in rows] == ["0"] * 4
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["ranks"], report["backend"], len(report["results"])) == (2, "gloo", 4)


@pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
def test_busbw_below_the_floor_fails_all_ranks(tmp_path: Path) -> None:
    # This number of iterations would exceed the timeout of the processes.
    first, second = gloo_ranks(tmp_path, 2, "--min-busbw", "1e9", "--iters", "1000000000", "--max-seconds", "0.2")
    assert (first.returncode, second.returncode) == (1, 1)
    assert "FAILED: busbw" in first.stdout
