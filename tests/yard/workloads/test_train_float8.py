"""Float8 training without torch: refusals and the choice of layers. torch and torchao are fakes."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from yard.workloads import train, train_float8
from yard.workloads.train_model import PRESETS


def torch_with(capability: tuple[int, int] | None, name: str = "NVIDIA H200") -> Any:
    """Return a fake torch with one GPU, or without a GPU."""
    cuda = SimpleNamespace(
        is_available=lambda: capability is not None,
        get_device_capability=lambda: capability,
        get_device_name=lambda: name,
    )
    return SimpleNamespace(cuda=cuda, __version__="2.11.0")


class Ranks:
    """A fake process group. `obstacles` contains the obstacle that each rank finds, or None."""

    def __init__(self, *obstacles: str | None) -> None:
        self.obstacles = obstacles

    def get_world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.obstacles)

    def all_gather_object(self, into: list[str | None], _mine: str | None) -> None:
        """Write the obstacles of all ranks to `into`, as torch.distributed does."""
        into[:] = self.obstacles


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Install a fake torchao. Return its list of conversions."""
    calls: list[dict[str, Any]] = []
    module = ModuleType("torchao.float8")
    module.Float8LinearConfig = SimpleNamespace(from_recipe_name=lambda name: f"config {name}")  # type: ignore[attr-defined]
    module.convert_to_float8_training = lambda model, **given: calls.append({"model": model, **given})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchao", ModuleType("torchao"))
    monkeypatch.setitem(sys.modules, "torchao.float8", module)
    return calls


def test_float8_is_off_by_default() -> None:
    assert train.parse([]).float8 is False
    assert train.parse(["--float8"]).float8 is True


@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0), (12, 0)])
def test_newer_gpus_are_accepted(capability: tuple[int, int]) -> None:
    assert train_float8.obstacle(torch_with(capability)) is None


@pytest.mark.usefixtures("converted")
@pytest.mark.parametrize(
    ("capability", "name", "has"),
    [((7, 0), "Tesla V100-SXM2-32GB", "7.0"), ((8, 0), "NVIDIA A100-SXM4-40GB", "8.0"), ((8, 6), "RTX A6000", "8.6")],
)
def test_older_gpus_are_refused(capability: tuple[int, int], name: str, has: str) -> None:
    said = train_float8.obstacle(torch_with(capability, name)) or ""
    assert f"it needs compute capability 8.9 or higher, and {name} has {has}. Fix: omit --float8" in said


@pytest.mark.usefixtures("converted")
def test_host_without_cuda_is_refused() -> None:
    assert "it needs a CUDA GPU, and torch finds none. Fix:" in (train_float8.obstacle(torch_with(None)) or "")


def test_missing_torchao_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    said = train_float8.obstacle(torch_with((9, 0))) or ""
    assert said.startswith("torchao cannot be used (ModuleNotFoundError: ")
    assert "install torchao 0.9 or newer, in a release compatible with torch 2.11.0" in said


@pytest.mark.usefixtures("converted")
def test_torchao_without_recipes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torchao.float8"], "Float8LinearConfig", SimpleNamespace())
    assert "torchao cannot be used (AttributeError: " in (train_float8.obstacle(torch_with((9, 0))) or "")


def test_no_obstacle_gives_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_float8, "obstacle", lambda _torch: None)
    assert train_float8.refusal(torch_with((9, 0)), Ranks(None, None)) == ""


@pytest.mark.parametrize(
    ("obstacles", "said"),
    [
        (("no GPU", "no GPU"), ["on all ranks: no GPU"]),
        ((None, "no GPU", None), ["on rank 1: no GPU"]),
        (("old", None, "no GPU", "old"), ["on ranks 0, 3: old", "on rank 2: no GPU"]),
    ],
)
def test_one_message_names_all_refused_ranks(
    obstacles: tuple[str | None, ...], said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_float8, "obstacle", lambda _torch: obstacles[0])
    lines = train_float8.refusal(torch_with((9, 0)), Ranks(*obstacles)).splitlines()
    assert lines == [f"train: --float8 is not possible {part}" for part in said]


def test_layers_in_blocks_are_converted(converted: list[dict[str, Any]]) -> None:
    train_float8.convert("model")
    (call,) = converted
    assert call["model"] == "model"
    assert call["config"] == "config tensorwise"
    names = ["blocks.0.qkv", "blocks.0.out", "blocks.11.up", "blocks.11.down", "head.logits"]
    assert [name for name in names if call["module_filter_fn"](None, name)] == names[:-1]


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_float8_can_multiply_the_matrices(preset: str) -> None:
    # torch._scaled_mm requires multiples of 16 in each dimension that it sums over, and in the last dimension.
    assert PRESETS[preset].hidden % 16 == 0
    assert PRESETS[preset].seq % 16 == 0
