"""The trainer and the all-reduce benchmark with torch on the CPU: resumed runs, killed ranks and signals."""

from __future__ import annotations

import array
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.yard.conftest import wait_until
from yard.workloads import allreduce, train

pytest.importorskip("torch", reason="torch is not installed")

STEPS = 12
SAME = 2e-4
"""Maximum relative difference between losses. The order of additions depends on the number of ranks."""
TRAIN, ALLREDUCE = Path(train.__file__), Path(allreduce.__file__)
TINY = ("--preset", "tiny", "--batch", "8")
EMULATED_FLOAT8 = f"""
import sys
sys.path.insert(0, {str(TRAIN.parent)!r})
import train
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
train.float8_obstacle = lambda torch: None
train._torchao = lambda: (convert_to_float8_training, Float8LinearConfig(emulate=True))
train.Trainer(train.parse()).run()
"""
"""A program that runs train.py with --float8 on a CPU, where torchao emulates the matrix products."""


class Ranks:
    """A run of a program on the loopback interface with one process per rank."""

    def __init__(
        self, ranks: int, *arguments: str, program: Path = TRAIN, most_bytes: int = resource.RLIM_INFINITY
    ) -> None:
        # The trainer's output is discarded, because a run that nobody reads would block.
        out, options = (subprocess.PIPE, ()) if program == ALLREDUCE else (subprocess.DEVNULL, TINY)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        where = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        self.processes = [
            subprocess.Popen(
                [sys.executable, str(program), *options, *arguments],
                env={**os.environ, **where, "RANK": str(rank), "LOCAL_RANK": str(rank),
                     "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
                stdout=out, stderr=subprocess.PIPE, text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes)),  # noqa: PLW1509
            )
            for rank in range(ranks)
        ]  # fmt: skip

    def end(self) -> tuple[list[int], str]:
        """Wait for all ranks, and return their exit codes and what they printed on stderr."""
        printed = [process.communicate(timeout=180) for process in self.processes]
        self.outputs = [out or "" for out, _ in printed]
        return [process.returncode for process in self.processes], "".join(error for _, error in printed)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
        self.end()


def train_to_the_end(ranks: int, *arguments: str, program: Path = TRAIN) -> None:
    codes, printed = Ranks(ranks, *arguments, program=program).end()
    assert codes == [0] * ranks, printed


def records(run_dir: Path) -> list[dict[str, Any]]:
    """Return the metrics from a run. The last line from a killed run may be incomplete and is skipped."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def losses(run_dir: Path) -> dict[int, float]:
    """Return the loss of each step. If a step ran twice, the later loss is returned."""
    return {record["step"]: record["loss"] for record in records(run_dir)}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    run_dir = tmp_path_factory.mktemp("unbroken")
    train_to_the_end(1, "--run-dir", str(run_dir), "--steps", str(STEPS), "--save-every", "0")
    return losses(run_dir)


def test_the_loss_falls(unbroken: dict[int, float]) -> None:
    assert len(unbroken) == STEPS
    assert unbroken[STEPS] < unbroken[1]


def test_changed_layouts_and_world_sizes_keep_the_losses(unbroken: dict[int, float], tmp_path: Path) -> None:
    for ranks, layout, until in ((2, "ddp", 3), (4, "fsdp2", 6), (1, "fsdp2", 9), (2, "ddp", STEPS)):
        train_to_the_end(
            ranks, "--parallel", layout, "--run-dir", str(tmp_path), "--steps", str(until), "--save-every", "3"
        )
    assert losses(tmp_path) == pytest.approx(unbroken, rel=SAME)
    assert [record["step"] for record in records(tmp_path)] == list(range(1, STEPS + 1)), "a step ran twice"
    kept = sorted(path.name for path in tmp_path.glob("step-*"))
    assert kept == [f"step-{STEPS - 3:08d}", f"step-{STEPS:08d}"]


def test_killed_run_continues_from_its_checkpoint(unbroken: dict[int, float], tmp_path: Path) -> None:
    arguments = ("--run-dir", str(tmp_path), "--save-every", "4", "--keep", "1000", "--steps")
    broken = Ranks(2, *arguments, "1000000")
    wait_until(lambda: (train.latest_step(tmp_path) or 0) >= 4, seconds=120)
    broken.processes[1].kill()
    codes, printed = broken.end()
    assert codes[1] == -signal.SIGKILL
    assert codes[0] > 0, f"the surviving rank must fail: {printed}"
    # Simulates a rank that is killed while it writes the checkpoint for step 8.
    (tmp_path / "latest").write_text("4\n")
    half = train.step_dir(tmp_path, 8)
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(train.step_dir(tmp_path, 4), half, ignore=shutil.ignore_patterns(".metadata"))
    before = len(records(tmp_path))
    train_to_the_end(2, *arguments, str(STEPS))
    again = records(tmp_path)[before:]
    assert [record["step"] for record in again] == list(range(5, STEPS + 1))
    assert {record["step"]: record["loss"] for record in again} == pytest.approx(
        {step: loss for step, loss in unbroken.items() if step > 4}, rel=SAME
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signal_to_one_rank_ends_all_with_a_checkpoint(number: signal.Signals, tmp_path: Path) -> None:
    run = Ranks(2, "--run-dir", str(tmp_path), "--save-every", "5", "--steps", "1000000")
    try:
        wait_until(lambda: (train.latest_step(tmp_path) or 0) >= 5, seconds=120)
        run.processes[1].send_signal(number)
        codes, printed = run.end()
    finally:
        run.kill()
    assert codes == [0, 0], printed
    assert train.latest_step(tmp_path) == records(tmp_path)[-1]["step"]


def test_failed_checkpoint_keeps_the_previous_one(tmp_path: Path) -> None:
    arguments = ("--run-dir", str(tmp_path), "--save-every", "2", "--steps")
    train_to_the_end(2, *arguments, "2")
    # A file size limit simulates a full disk, so the write fails on every rank.
    codes, printed = Ranks(2, *arguments, "4", most_bytes=1 << 19).end()
    assert codes == [1, 1], printed
    assert f"the checkpoint {train.step_dir(tmp_path, 4)} could not be written; " in printed
    assert "MiB are free there (rank 0: " in printed
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000002"]
    assert train.latest_step(tmp_path) == 2


@pytest.mark.parametrize("flag", ["--recompute", "--deterministic"])
def test_compute_options_keep_the_losses(flag: str, unbroken: dict[int, float], tmp_path: Path) -> None:
    train_to_the_end(1, flag, "--run-dir", str(tmp_path), "--steps", "4", "--save-every", "0")
    assert losses(tmp_path) == pytest.approx({step: unbroken[step] for step in range(1, 5)}, rel=SAME)


def test_token_width_does_not_change_the_losses(tmp_path: Path) -> None:
    ids = [(7 * number) % 512 for number in range(1000)]
    results = []
    for code, width in (("H", "2"), ("I", "4")):
        (tmp_path / f"{width}.bin").write_bytes(array.array(code, ids).tobytes())
        run_dir = tmp_path / width
        train_to_the_end(
            1, "--data", str(tmp_path / f"{width}.bin"), "--token-bytes", width,
            "--run-dir", str(run_dir), "--steps", "3", "--save-every", "0",
        )  # fmt: skip
        results.append(losses(run_dir))
    assert results[0] == results[1]
    (tmp_path / "2.bin").write_bytes(array.array("H", [65535] * 100).tobytes())
    codes, printed = Ranks(1, "--data", str(tmp_path / "2.bin"), "--run-dir", str(tmp_path), "--steps", "1").end()
    assert codes == [1]
    assert "contains token 65535, but the preset's vocabulary has 512. Fix:" in printed


@pytest.mark.parametrize(
    ("ranks", "arguments", "message"),
    [
        (1, ["--data", "nowhere"], "train: --data nowhere is not a file"),
        (3, [], "--batch 8 must be a multiple of the world size 3"),
        (2, ["--float8"], "train: --float8 is not possible on all ranks: it needs a CUDA GPU, and torch finds none."),
    ],
)
def test_impossible_runs_are_refused(ranks: int, arguments: list[str], message: str, tmp_path: Path) -> None:
    codes, printed = Ranks(ranks, *arguments, "--run-dir", str(tmp_path)).end()
    assert codes == [1] * ranks
    assert message in printed
    assert "Traceback" not in printed
    assert not list(tmp_path.iterdir())


def test_records_contain_the_fields_of_benchmarks(tmp_path: Path) -> None:
    train_to_the_end(1, "--run-dir", str(tmp_path), "--steps", "4", "--log-every", "2", "--save-every", "4")
    found = records(tmp_path)
    assert [record["step"] for record in found] == [2, 4]
    assert "checkpoint_s" in found[-1]
    for record in found:
        assert record["tokens_per_s"] == pytest.approx(8 * 64 / (record["step_ms"] / 1e3))
        assert record["hardware_tflops"] > 0
        assert record["model_tflops"] > 0
        assert record["mfu"] is None  # a CPU has no peak in the table


@pytest.mark.parametrize("layout", ["ddp", "fsdp2"])
def test_checkpoints_do_not_depend_on_float8(layout: str, unbroken: dict[int, float], tmp_path: Path) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    emulated = tmp_path / "emulated.py"
    emulated.write_text(EMULATED_FLOAT8)
    run_dir = tmp_path / "run"
    arguments = ("--parallel", layout, "--run-dir", str(run_dir), "--save-every", "3", "--steps")
    train_to_the_end(2, *arguments, "3")
    train_to_the_end(2, *arguments, "6", "--float8", program=emulated)
    train_to_the_end(2, *arguments, "9")
    found = losses(run_dir)
    assert [record["step"] for record in records(run_dir)] == list(range(1, 10)), "a step ran twice"
    assert found == pytest.approx({step: unbroken[step] for step in range(1, 10)}, rel=0.005)
    assert found[6] != pytest.approx(unbroken[6], rel=1e-6), "step 6 did not run in float8"


def test_code_in_a_checkpoint_of_others_does_not_run(tmp_path: Path) -> None:
    folder = train.step_dir(tmp_path, 4)
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(_Attack(str(tmp_path / "ran"))))
    train.publish(tmp_path, 4, keep=2)
    tmp_path.chmod(0o777)
    codes, printed = Ranks(2, "--steps", "6", "--run-dir", str(tmp_path)).end()
    assert codes == [1, 1]
    assert f"other users can write to {tmp_path}" in printed
    assert not (tmp_path / "ran").exists()


class _Attack:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def benchmark(report: Path, *arguments: str) -> Ranks:
    options = ("-b", "8", "-e", "4K", "-f", "8", "--iters", "2", "--warmup", "1", "--json", str(report))
    return Ranks(2, *options, *arguments, program=ALLREDUCE)


def test_two_ranks_measure_over_gloo(tmp_path: Path) -> None:
    ranks = benchmark(tmp_path / "out.json")
    codes, errors = ranks.end()
    first, second = ranks.outputs
    assert (codes, second) == ([0, 0], ""), errors
    rows = [line.split() for line in first.splitlines() if not line.startswith("#")]
    assert [int(row[0]) for row in rows] == [8, 64, 512, 4096]
    assert [row[-1] for row in rows] == ["0"] * 4
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["ranks"], report["backend"], len(report["results"])) == (2, "gloo", 4)


def test_busbw_below_the_floor_fails_all_ranks(tmp_path: Path) -> None:
    # This number of iterations would exceed the timeout of the processes.
    more = ("--min-busbw", "1e9", "--iters", "1000000000", "--max-seconds", "0.2")
    ranks = benchmark(tmp_path / "out.json", *more)
    assert ranks.end()[0] == [1, 1]
    assert "FAILED: busbw" in ranks.outputs[0]
