"""Memory estimates compared with published and measured numbers, and the sizing advice."""

from __future__ import annotations

import json

import pytest

from tests.yard.conftest import printed, yard
from yard.sizing import (
    GPU_GB,
    MODELS,
    Batch,
    Machines,
    Memory,
    SizeError,
    fewest_nodes,
    first_fit,
    gpu_gb,
    largest_gb,
    layouts,
    model_named,
    parse_layout,
    refusal,
    size,
)

ALONE = Batch()


def states(memory: Memory) -> int:
    return memory.weights + memory.gradients + memory.optimizer


def memory(model: str, layout: str, nodes: int, gpus_per_node: int, batch: Batch = ALONE) -> Memory:
    machines = Machines(nodes=nodes, gpus_per_node=gpus_per_node)
    return size(model_named(model), parse_layout(layout), machines, batch, 80).memory


@pytest.mark.parametrize(
    ("model", "layout", "gpus", "gigabytes"),
    [
        ("20b", "tp4-pp6", (3, 8), 13.7),
        ("20b", "tp2-pp4-zero1", (3, 8), 20.6),
        ("neox-2.7b", "zero1", (1, 8), 15.3),
        ("opt-6.7b", "zero3", (1, 8), 13.3),
        ("opt-175b", "fsdp", (8, 8), 43.8),
        ("opt-175b", "fsdp", (2, 8), 175),
    ],
)
def test_states_equal_the_published_numbers(model: str, layout: str, gpus: tuple[int, int], gigabytes: float) -> None:
    assert states(memory(model, layout, *gpus)) / 1e9 == pytest.approx(gigabytes, rel=0.005)


def test_estimates_are_close_to_the_measurements() -> None:
    # 27 GB per GPU on 3 x 8 A100-40: 4 sequences per GPU, recomputation, buckets of 1.26e9 elements (20B.yml).
    batch = Batch(sequences=4, recompute=True, zero_bucket=1_260_000_000)
    assert memory("20b", "tp4-pp6", 3, 8, batch).total / 1e9 == pytest.approx(27, rel=0.03)
    # docs/dev/benchmarks.md: 95 GiB on 4 H200s with 6 sequences each. With torch.compile, fewer activations are stored.
    measured = 95 * 2**30
    batch = Batch(sequences=6, gradient_bytes=4)
    assert measured < memory("13b", "fsdp", 1, 4, batch).total < 1.25 * measured


@pytest.mark.parametrize(
    ("name", "billions"), [("gpt2-xl", 1.558), ("opt-175b", 174.6), ("neox-2.7b", 2.78), ("20b", 20.55)]
)
def test_models_have_their_published_parameter_count(name: str, billions: float) -> None:
    assert model_named(name).parameters / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_more_sharding_never_increases_the_states(model: str) -> None:
    stages = [states(memory(model, f"zero{stage}", 2, 4)) for stage in range(4)]
    assert stages == sorted(stages, reverse=True)
    assert stages[0] == 16 * model_named(model).parameters
    assert stages[3] == pytest.approx(stages[0] / 8, rel=1e-6)
    assert states(memory(model, "hsdp", 2, 4)) == pytest.approx(stages[0] / 4, rel=1e-6)


def test_activations_follow_the_published_formula() -> None:
    shape = model_named("opt-6.7b").shape
    row = shape.seq * shape.hidden * shape.layers
    assert memory("opt-6.7b", "ddp", 1, 8).activations == 34 * row
    assert memory("opt-6.7b", "tp4", 1, 8).activations == 16 * row
    # The first pipeline stage stores one micro-batch for each stage.
    assert memory("opt-6.7b", "pp8", 1, 8).activations == 34 * row
    assert memory("opt-6.7b", "ddp", 1, 8, Batch(recompute=True)).activations == 2 * row + 34 * row // shape.layers


def test_the_layout_with_least_communication_is_chosen() -> None:
    one = Machines(nodes=1, gpus_per_node=8)

    def chosen(model: str, gb: int, machines: Machines = one) -> tuple[str, bool] | None:
        found = first_fit(model_named(model), machines, Batch(), gb)
        return (found.layout.name, found.batch.recompute) if found else None

    assert chosen("gpt2-124m", 16) == ("ddp", False)
    assert chosen("neox-2.7b", 80) == ("ddp", False)
    assert chosen("neox-2.7b", 40) == ("zero1", False)
    assert chosen("opt-6.7b", 80) == ("zero1", False)
    assert chosen("opt-6.7b", 24) == ("tp8-zero1", False)
    assert chosen("opt-175b", 80) is None
    assert chosen("20b", 80, Machines(nodes=2, gpus_per_node=8)) == ("hsdp", False)


def test_layouts_divide_heads_and_gpus() -> None:
    model, machines = model_named("20b"), Machines(nodes=3, gpus_per_node=8)
    found = [layout for layout in layouts(model, machines) if layout.tensor * layout.pipeline > 1]
    assert {(4, 6), (8, 3), (2, 4)} <= {(layout.tensor, layout.pipeline) for layout in found}
    for layout in found:
        assert model.shape.heads % layout.tensor == 0
        assert machines.gpus % (layout.tensor * layout.pipeline) == 0
        assert layout.tensor <= machines.gpus_per_node


def test_fewest_nodes_returns_the_minimum() -> None:
    model = model_named("opt-175b")
    found = fewest_nodes(model, 8, Batch(), 80)
    assert found is not None
    nodes, sized = found
    assert sized.fits
    assert first_fit(model, Machines(nodes=nodes - 1, gpus_per_node=8), Batch(), 80) is None


def test_a_refusal_reports_memory_and_required_nodes() -> None:
    message = refusal("opt-175b", "a100", Machines(nodes=2, gpus_per_node=8))
    assert message is not None
    assert "needs 198.2 GB per GPU (21.8 weights + 21.8 gradients + 131.0 optimizer" in message
    assert "of 80 GB" in message
    assert message.endswith("7 such nodes are sufficient")
    assert refusal("opt-175b", "a100", Machines(nodes=7, gpus_per_node=8)) is None
    assert refusal("opt-175b", "a100", Machines(nodes=6, gpus_per_node=8)) is not None
    # Unknown GPUs are not refused.
    assert [refusal("opt-175b", gpu, Machines(nodes=1, gpus_per_node=1)) for gpu in (None, "fake")] == [None, None]


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        *(
            (text, "use ddp, zero1")
            for text in ("", "tp0", "dpp", "tp2-pp0", "zero4", "tp2-zero1-zero2", "ddp-tp2", "TP2")
        ),
        ("tp5", "tp 5 does not divide the 32 heads"),
        ("tp2-pp3", "does not divide 8"),
        ("pp64", "has 32 layers, fewer than pp 64"),
    ],
)
def test_invalid_and_incompatible_layouts_are_refused(layout: str, message: str) -> None:
    with pytest.raises(SizeError, match=message):
        size(model_named("opt-6.7b"), parse_layout(layout), Machines(nodes=1, gpus_per_node=8), Batch(), 80)


def test_invalid_names_of_gpus_and_models_are_refused() -> None:
    with pytest.raises(SizeError, match=r"a100: has several memory sizes\. Fix: use a100-40 or a100-80"):
        gpu_gb("a100")
    with pytest.raises(SizeError, match=r"h900: is unknown\. Fix: use t4"):
        gpu_gb("h900")
    with pytest.raises(SizeError, match=r"gpt9: is unknown\. Fix: use tiny"):
        model_named("gpt9")
    assert [largest_gb(name) for name in ("a100", "h200", "v100", "fake", None)] == [80, 141, 32, None, None]
    assert all(largest_gb(name) for name in GPU_GB)


def test_yard_size_recommends_a_layout() -> None:
    code, out, _ = yard("size", "20b", "--gpu", "h100", "--nodes", "2", "--json")
    answer = json.loads(out)
    assert (code, answer["fits"], answer["advice"]) == (0, True, "Use hsdp: 67.0 of 80 GB.")
    assert [row["layout"] for row in answer["layouts"] if row["fits"]][:2] == ["hsdp", "fsdp"]
    assert all(sum(row["bytes"].values()) == 2 * row["bytes"]["total"] for row in answer["layouts"])
    out = printed("size", "20b", "--gpu", "h100", "--nodes", "2")
    assert "20.55 billion parameters on 16 h100 of 80 GB" in out
    assert "Use hsdp" in out


def test_yard_size_recommends_nodes_if_nothing_fits() -> None:
    code, out, err = yard("size", "opt-175b", "--gpu", "a100-80", "--nodes", "2")
    assert code == 1
    assert "Use 6 nodes with tp8-pp6-zero1 with recomputation: 68.4 of 80 GB." in out
    assert "opt-175b does not fit: tp8-pp2-zero1 needs 211.1 GB per GPU (21.8 weights + " in err


def test_recomputation_is_recommended_only_without_a_layout() -> None:
    arguments = ("opt-175b", "--gpu", "h100", "--nodes", "8")
    assert yard("size", *arguments)[0] == 0
    assert yard("size", *arguments, "--layout", "fsdp")[0] == 1
    assert yard("size", *arguments, "--layout", "fsdp", "--recompute")[0] == 0
