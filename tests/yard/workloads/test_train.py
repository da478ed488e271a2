"""The trainers and the all-reduce benchmark without torch: arithmetic, checkpoints, refusals, errors and data."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from yard.workloads import allreduce, train
from yard.workloads.opt_zero3 import IGNORED, Batches, read_texts, sample_numbers
from yard.workloads.train_model import PRESETS, Shape, hardware_flops, model_flops, peak_tflops, percentile, step_times


@pytest.mark.parametrize(("gpus", "samples_per_s", "printed"), [(8, 6.381, 127.2), (16, 9.074, 90.3), (24, 9.02, 59.8)])
def test_flops_reproduce_lambdas_scaling_table(gpus: int, samples_per_s: float, printed: float) -> None:
    # Lambda's post uses gpt-neox, which recomputes activations and computes TFLOPS per GPU from samples per second.
    flops = hardware_flops(PRESETS["13b"], 1, recompute=True)
    assert flops * samples_per_s / gpus / 1e12 == pytest.approx(printed, rel=0.005)
    assert flops / hardware_flops(PRESETS["13b"], 1, recompute=False) == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("preset", "billions"),
    [("gpt2-124m", 0.124), ("opt-125m", 0.125), ("neox-2.7b", 2.65), ("opt-6.7b", 6.7), ("13b", 9.1), ("20b", 20.2)],
)
def test_preset_sizes_match_their_names(preset: str, billions: float) -> None:
    # 13b is Lambda's name for the 20B shape with a hidden size of 4096. This model has 9.1 billion parameters.
    assert PRESETS[preset].parameters / 1e9 == pytest.approx(billions, rel=0.02)
    assert Shape(12, 768, 12, 50257, 1024).parameters == 124_439_808  # GPT-2 small, as published


@pytest.mark.parametrize("shape", PRESETS.values(), ids=PRESETS)
def test_shapes_fit_the_kernels(shape: Shape) -> None:
    assert shape.hidden % shape.heads == 0
    # For --float8, torch._scaled_mm requires multiples of 16 in each dimension that it sums over, and in the last one.
    assert (shape.hidden % 16, shape.seq % 16) == (0, 0)


def test_both_formulas_agree_on_a_wide_model() -> None:
    # Both formulas count the same matrix products. They differ only in biases, norms and embeddings.
    shape = PRESETS["13b"]
    assert model_flops(shape, 8) == pytest.approx(hardware_flops(shape, 8, False), rel=0.02)


@pytest.mark.parametrize(
    ("device", "peak"),
    [("NVIDIA H200", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA RTX A6000", 154.85),
     ("NVIDIA A100-SXM4-40GB", 312), ("Tesla V100-SXM2-32GB", None)],
)  # fmt: skip
def test_peak_is_found_by_device_name(device: str, peak: float | None) -> None:
    assert peak_tflops(device) == peak


def test_percentiles_are_observed_values() -> None:
    numbers = [float(number) for number in range(1, 21)]
    assert [percentile(numbers, share) for share in (0.01, 0.5, 0.95, 1.0)] == [1, 10, 19, 20]
    assert step_times([0.004, 0.001, 0.002]) == {"step_ms_p50": 2.0, "step_ms_p95": 4.0, "step_ms_max": 4.0}


def checkpoint(run_dir: Path, step: int, *, whole: bool = True) -> Path:
    folder = train.step_dir(run_dir, step)
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"shard")
    if whole:
        (folder / ".metadata").write_bytes(b"index")
    return folder


def test_published_checkpoint_is_the_latest(tmp_path: Path) -> None:
    assert train.latest_step(tmp_path) is None
    for step in (5, 10):
        checkpoint(tmp_path, step)
        train.publish(tmp_path, step, keep=2)
    checkpoint(tmp_path, 15, whole=False)
    assert train.latest_step(tmp_path) == 10


@pytest.mark.parametrize("path", [".", "latest", "step-00000005", "step-00000005/.metadata"])
def test_a_checkpoint_that_others_can_write_is_refused(path: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, 5)
    train.publish(tmp_path, 5, keep=2)
    assert train.distrust(tmp_path, 5) == ""
    for mode in (0o777, 0o702):
        (tmp_path / path).chmod(mode)
        assert train.distrust(tmp_path, 5) == f"other users can write to {tmp_path / path}"
    (tmp_path / path).chmod(0o770)
    assert train.distrust(tmp_path, 5) == "", "the umask of many accounts is 002, with a group of their own"


@pytest.mark.parametrize("path", [".", "step-00000005", "step-00000005/__0_0.distcp"])
def test_a_checkpoint_of_another_user_is_refused(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint(tmp_path, 5)
    train.publish(tmp_path, 5, keep=2)
    own, stat = os.getuid(), Path.stat

    def other(self: Path, **more: bool) -> os.stat_result:
        found = list(stat(self, **more))
        found[4] = own + 1000 if self == tmp_path / path else own
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", other)
    assert train.distrust(tmp_path, 5) == f"{tmp_path / path} belongs to uid {own + 1000}"


@pytest.mark.parametrize("text", ["", "ten", "12"])
def test_latest_without_complete_checkpoint_is_ignored(text: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, 12, whole=False)
    (tmp_path / "latest").write_text(text)
    assert train.latest_step(tmp_path) is None


def test_newest_complete_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (5, 10):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 13, whole=False)
    checkpoint(tmp_path, 15)
    newer = checkpoint(tmp_path, 20, whole=False)  # another run has written this newer checkpoint, so it must be kept
    train.publish(tmp_path, 15, keep=2)
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000010", "step-00000015", newer.name]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1, 0)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1"}, (3, 4, 1)),
        ({"RANK": "2", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (2, 8, 2)),
    ],
)
def test_rank_comes_from_torch_or_slurm_variables(
    variables: dict[str, str], expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"):
        # The variables are set and deleted first, so that monkeypatch later removes the values that the function sets.
        monkeypatch.setenv(name, "-")
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert train.rank_from_environment() == expected


@pytest.mark.parametrize("ranks", [1, 2, 16])
def test_the_default_batch_suits_every_world_size(ranks: int) -> None:
    assert train.global_batch(train.parse([]).batch, ranks) == ranks
    assert train.global_batch(48, ranks) == 48
    with pytest.raises(SystemExit, match=f"--batch {ranks + 31} must be a multiple of the world size {ranks + 30}"):
        train.global_batch(ranks + 31, ranks + 30)


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--batch", "0"], ["--keep", "1"], ["--save-every", "-1"]])
def test_numbers_out_of_range_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.parse(arguments)
    assert "must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "token_bytes", "said"),
    [
        (None, 2, "is not a file. Fix: use a file of token ids"),
        (b"\0" * 131, 2, "contains 65 tokens of 2 bytes and 1 extra bytes"),
        (b"\0" * 128, 2, "contains 64 tokens of 2 bytes and 0 extra bytes; a window needs 65"),
        (b"\0" * 134, 4, "contains 33 tokens of 4 bytes and 2 extra bytes"),
    ],
)
def test_data_file_is_checked_before_the_start(
    content: bytes | None, token_bytes: int, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "data.bin"
    if content is not None:
        file.write_bytes(content)
    options = train.parse(["--data", str(file), "--token-bytes", str(token_bytes)])
    with pytest.raises(SystemExit) as error:
        train.Data(None, options, PRESETS["tiny"])
    assert f"{file} " in str(error.value)
    assert said in str(error.value)


def torch_with(capability: tuple[int, int] | None) -> Any:
    """Return a fake torch with one GPU, or without a GPU."""
    cuda = SimpleNamespace(
        is_available=lambda: capability is not None,
        get_device_capability=lambda: capability,
        get_device_name=lambda: "NVIDIA H200",
    )
    return SimpleNamespace(cuda=cuda, __version__="2.11.0")


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    module = ModuleType("torchao.float8")
    module.Float8LinearConfig = SimpleNamespace(from_recipe_name=lambda name: f"config {name}")  # type: ignore[attr-defined]
    module.convert_to_float8_training = lambda model, **given: calls.append({"model": model, **given})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", module)
    return calls


@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize(
    ("capability", "said"),
    [
        ((8, 9), None),
        ((12, 0), None),
        ((8, 6), "it needs compute capability 8.9 or higher, and NVIDIA H200 has 8.6. Fix: omit --float8, or use"),
        ((7, 0), "it needs compute capability 8.9 or higher, and NVIDIA H200 has 7.0. Fix: omit --float8, or use"),
        (None, "it needs a CUDA GPU, and torch finds none. Fix: "),
    ],
)
def test_gpus_without_float8_are_refused(capability: tuple[int, int] | None, said: str | None) -> None:
    found = train.float8_obstacle(torch_with(capability))
    assert found is None if said is None else (found or "").startswith(said)


def test_missing_or_old_torchao_is_refused(converted: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torchao.float8"], "Float8LinearConfig", SimpleNamespace())
    assert "torchao cannot be used (AttributeError: " in (train.float8_obstacle(torch_with((9, 0))) or "")
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.delitem(sys.modules, "torchao.float8")
    said = train.float8_obstacle(torch_with((9, 0))) or ""
    assert said.startswith("torchao cannot be used (ModuleNotFoundError: ")
    assert "install torchao 0.9 or newer, in a release compatible with torch 2.11.0" in said


@pytest.mark.parametrize(
    ("obstacles", "said"),
    [
        ((None, None), []),
        (("no GPU", "no GPU"), ["on all ranks: no GPU"]),
        ((None, "no GPU", None), ["on rank 1: no GPU"]),
        (("old", None, "no GPU", "old"), ["on ranks 0, 3: old", "on rank 2: no GPU"]),
    ],
)
def test_one_message_names_all_refused_ranks(
    obstacles: tuple[str | None, ...], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "float8_obstacle", lambda _torch: obstacles[0])

    def gather(into: list[str | None], _mine: str | None) -> None:
        into[:] = obstacles

    ranks = SimpleNamespace(get_world_size=lambda: len(obstacles), all_gather_object=gather)
    lines = train.float8_refusal(torch_with((9, 0)), ranks).splitlines()
    assert lines == [f"train: --float8 is not possible {part}" for part in said]


def test_layers_in_blocks_are_converted(converted: list[dict[str, Any]]) -> None:
    train.convert_to_float8("model")
    (call,) = converted
    assert call["model"] == "model"
    assert call["config"] == "config tensorwise"
    names = ["blocks.0.qkv", "blocks.0.out", "blocks.11.up", "blocks.11.down", "head.logits"]
    assert [name for name in names if call["module_filter_fn"](None, name)] == names[:-1]


def numbers(batch_number: int, ranks: int, batch: int, count: int) -> list[int]:
    """Return the sample indices of all ranks for one batch."""
    return [number for rank in range(ranks) for number in sample_numbers(batch_number, rank, ranks, batch, count)]


def test_ranks_read_every_sample_before_one_repeats() -> None:
    assert numbers(0, ranks=4, batch=2, count=100) == list(range(8))
    read = [number for batch in range(5) for number in numbers(batch, ranks=2, batch=3, count=30)]
    assert sorted(read) == list(range(30))
    assert numbers(0, ranks=2, batch=4, count=3) == [0, 1, 2, 0, 1, 2, 0, 1]


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text('{"text": "a"}\n\n{"text": "b"}\n')
    assert read_texts(file) == ["a", "b"]
    file.write_text("\n\n")
    with pytest.raises(ValueError, match="contains no lines"):
        read_texts(file)


class Tensor:
    """One row of numbers with the two operations that Batches uses."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __eq__(self, other: object) -> Any:
        return [number == other for number in self.numbers]

    __hash__ = None  # type: ignore[assignment]

    def masked_fill(self, mask: list[bool], value: int) -> list[int]:
        return [value if hidden else number for number, hidden in zip(self.numbers, mask, strict=True)]


class Tokenizer:
    """Returns two tokens and two padding tokens. The id of the padding token, 2, is also the id of a normal token."""

    def __call__(self, texts: list[str], **options: object) -> dict[str, Tensor]:
        assert (options["padding"], options["max_length"]) == ("max_length", 4)
        self.texts = texts
        return {"input_ids": Tensor([7, 2, 2, 2]), "attention_mask": Tensor([1, 1, 0, 0])}


def test_the_loss_ignores_padding_only(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n')
    tokenizer = Tokenizer()
    auto = SimpleNamespace(from_pretrained=lambda _: tokenizer)
    options = Namespace(data=str(tmp_path / "data.jsonl"), model="m", batch=1, seq=4)
    data = Batches(None, SimpleNamespace(AutoTokenizer=auto), options, rank=0, ranks=1)
    batch = data.batch(2)
    assert tokenizer.texts == ["c"]
    assert batch["labels"] == [7, 2, IGNORED, IGNORED]
    assert batch["attention_mask"].numbers == [1, 1, 0, 0]


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
