"""The trainer without torch: its arithmetic against published figures, its checkpoints' names, and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.workloads import train
from jobs.workloads.train import PRESETS, Shape


@pytest.mark.parametrize(("gpus", "samples_per_s", "printed"), [(8, 6.381, 127.2), (16, 9.074, 90.3), (24, 9.02, 59.8)])
def test_the_formula_reproduces_lambdas_scaling_table(gpus: int, samples_per_s: float, printed: float) -> None:
    # The post trains with gpt-neox, which recomputes activations and logs TFLOPS per GPU from samples per second.
    flops = train.hardware_flops(PRESETS["13b"], 1, recompute=True) * samples_per_s
    assert flops / gpus / 1e12 == pytest.approx(printed, rel=0.005)


def test_recomputation_adds_a_third() -> None:
    with_it, without = (train.hardware_flops(PRESETS["20b"], 4, recompute) for recompute in (True, False))
    assert with_it / without == pytest.approx(4 / 3)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (Shape(12, 768, 12, 50257, 1024), 124_439_808),  # GPT-2 small, as published
        (Shape(48, 1600, 25, 50257, 1024), 1_557_611_200),  # GPT-2 XL
    ],
)
def test_parameters_are_those_of_published_models(shape: Shape, parameters: int) -> None:
    assert shape.parameters == parameters


@pytest.mark.parametrize(
    ("preset", "billions"),
    [("gpt2-124m", 0.124), ("opt-125m", 0.125), ("neox-2.7b", 2.65), ("opt-6.7b", 6.7), ("13b", 9.1), ("20b", 20.2)],
)
def test_presets_are_as_large_as_their_names(preset: str, billions: float) -> None:
    # 13b is Lambda's name for the 20B shape with a hidden size of 4096; it is smaller than it says.
    assert PRESETS[preset].parameters / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_heads_divide_the_hidden_size(preset: str) -> None:
    assert PRESETS[preset].hidden % PRESETS[preset].heads == 0


def test_both_formulas_agree_on_a_wide_model() -> None:
    # They count the same products; they differ in biases, norms and embeddings only.
    shape = PRESETS["13b"]
    assert train.model_flops(shape, 8) == pytest.approx(train.hardware_flops(shape, 8, False), rel=0.02)


@pytest.mark.parametrize(
    ("device", "peak"),
    [("NVIDIA H200", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA H100 80GB HBM3", 989), ("NVIDIA RTX A6000", 154.85),
     ("NVIDIA A100-SXM4-40GB", 312), ("Tesla V100-SXM2-32GB", None)],
)  # fmt: skip
def test_the_peak_is_found_by_the_devices_name(device: str, peak: float | None) -> None:
    assert train.peak_tflops(device) == peak


@pytest.mark.parametrize(("share", "value"), [(0.5, 10.0), (0.95, 19.0), (1.0, 20.0), (0.01, 1.0)])
def test_percentiles_are_values_that_occurred(share: float, value: float) -> None:
    assert train.percentile([float(number) for number in range(1, 21)], share) == value


def checkpoint(run_dir: Path, step: int, *, whole: bool = True) -> Path:
    """Write what a checkpoint looks like from outside."""
    folder = train.step_dir(run_dir, step)
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"shard")
    if whole:
        (folder / ".metadata").write_bytes(b"index")
    return folder


def test_a_new_run_has_no_checkpoint(tmp_path: Path) -> None:
    assert train.latest_step(tmp_path) is None


def test_the_published_checkpoint_is_the_latest(tmp_path: Path) -> None:
    for step in (5, 10):
        checkpoint(tmp_path, step)
        train.publish(tmp_path, step, keep=2)
    assert train.latest_step(tmp_path) == 10


def test_a_checkpoint_killed_while_it_was_written_is_not_used(tmp_path: Path) -> None:
    checkpoint(tmp_path, 5)
    train.publish(tmp_path, 5, keep=2)
    checkpoint(tmp_path, 10, whole=False)
    assert train.latest_step(tmp_path) == 5


@pytest.mark.parametrize("text", ["", "ten", "12"])
def test_a_latest_that_names_nothing_whole_is_not_used(text: str, tmp_path: Path) -> None:
    checkpoint(tmp_path, 12, whole=False)
    (tmp_path / "latest").write_text(text)
    assert train.latest_step(tmp_path) is None


def test_only_the_newest_whole_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (5, 10):
        checkpoint(tmp_path, step)
    checkpoint(tmp_path, 13, whole=False)
    checkpoint(tmp_path, 15)
    newer = checkpoint(tmp_path, 20, whole=False)  # a run that is ahead: not this one's to remove
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
def test_ranks_come_from_torch_else_from_slurm(
    variables: dict[str, str], expected: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"):
        # Set first, so that monkeypatch takes away again what the function adds.
        monkeypatch.setenv(name, "-")
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert train.rank_from_environment() == expected


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--batch", "0"], ["--keep", "1"], ["--save-every", "-1"]])
def test_numbers_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.parse(arguments)
    assert "must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "token_bytes", "said"),
    [
        (None, 2, "is no file. Fix: name a file of token ids"),
        (b"\0" * 131, 2, "holds 65 tokens of 2 bytes and 1 bytes more"),
        (b"\0" * 128, 2, "holds 64 tokens of 2 bytes and 0 bytes more; a window needs 65"),
        (b"\0" * 134, 4, "holds 33 tokens of 4 bytes and 2 bytes more"),
    ],
)
def test_a_data_file_is_checked_before_anything_starts(
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
