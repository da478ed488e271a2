"""Float8 training with torchao, for train.py. Importing this file needs neither torch nor torchao."""

from __future__ import annotations

from typing import Any

LEAST_CAPABILITY = (8, 9)
"""The lowest compute capability with float8 matrix products.

Sources, read on 2026-11-22: torchao 0.18.0 (5f2baf9), test/float8/test_base.py and torchao/quantization/quant_api.py;
pytorch 0174dfa, aten/src/ATen/native/cuda/ScaledBlas.cpp, the error message of `torch._scaled_mm`.
"""

EAGER_WARNING = (
    "train: warning: --float8 without --compile is slow, because only torch.compile fuses torchao's casts and scales. "
    "Fix: add --compile"
)
"""torchao's docs require torch.compile for high performance, not for correct results.

Source: torchao 0.18.0 (5f2baf9), docs/source/eager_tutorials/pretraining.rst, read on 2026-11-22.
"""


def obstacle(torch: Any) -> str | None:
    """Return why this rank cannot train in float8, with a fix, or None if it can."""
    cuda = torch.cuda
    if not cuda.is_available():
        return (
            "it needs a CUDA GPU, and torch finds none. "
            "Fix: omit --float8; on a host with a GPU, correct its driver or install a CUDA build of torch"
        )
    if (found := cuda.get_device_capability()) < LEAST_CAPABILITY:
        least, own = (f"{major}.{minor}" for major, minor in (LEAST_CAPABILITY, found))
        return (
            f"it needs compute capability {least} or higher, and {cuda.get_device_name()} has {own}. "
            "Fix: omit --float8, or use newer GPUs (H100, H200, B200)"
        )
    try:
        _torchao()
    except Exception as error:  # an installed torchao that is incompatible with torch can raise any error
        return (
            f"torchao cannot be used ({type(error).__name__}: {error}). Fix: in the job's Python environment, install "
            f"torchao 0.9 or newer, in a release compatible with torch {torch.__version__}, or omit --float8"
        )
    return None


def refusal(torch: Any, dist: Any) -> str:
    """Return one message about all ranks that cannot train in float8, or '' if there are none.

    All ranks must call this function, and get the same result, although their GPUs and packages may differ.
    """
    obstacles: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(obstacles, obstacle(torch))
    ranks: dict[str, list[str]] = {}
    for rank, reason in enumerate(obstacles):
        if reason:
            ranks.setdefault(reason, []).append(str(rank))
    return "\n".join(
        f"train: --float8 is not possible on {_where(found, len(obstacles))}: {reason}"
        for reason, found in ranks.items()
    )


def convert(model: Any) -> None:
    """Replace the linear layers in the blocks with torchao's float8 layers, before torch.compile and FSDP2 are applied.

    The new layers contain the same parameters, so checkpoints do not depend on --float8. Each tensor has one scale. On
    two H200s, the 13b preset with 22 layers was 1.29 times as fast as in bf16 (docs/dev/benchmarks.md). In a trial, it
    was 1.22 times as fast with one scale per row, and 1.27 times as fast with float8 all-gathers.
    """
    convert_to_float8_training, config = _torchao()
    convert_to_float8_training(model, module_filter_fn=is_converted, config=config)


def is_converted(_module: Any, name: str) -> bool:
    """Return whether a layer is converted. The logits stay in bf16, as in torchtitan's examples (torchtitan b5bcd76,
    torchtitan/components/quantization/float8.md, read on 2026-11-22).
    """
    return name.startswith("blocks.")


def _torchao() -> tuple[Any, Any]:
    """Return torchao's function and its configuration. Can raise any error if torchao is missing or incompatible.

    torchao has had from_recipe_name since 0.9 (branch release/0.9, torchao/float8/config.py, read on 2026-11-22).
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training  # noqa: PLC0415

    return convert_to_float8_training, Float8LinearConfig.from_recipe_name("tensorwise")


def _where(ranks: list[str], total: int) -> str:
    if len(ranks) == total:
        return "all ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(ranks)}"
