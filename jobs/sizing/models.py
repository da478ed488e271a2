"""What is sized: models by name, and the memory of GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from components.errors import ClusterError, Problem
from jobs.workloads.train import PRESETS, Shape


class SizeError(ClusterError):
    """A model, GPU or layout that cannot be sized: it is unknown, or contradicts itself."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """A GPT. `tied`: the logits use the token embedding's weights; `learned`: positions have an embedding."""

    name: str
    shape: Shape
    tied: bool
    learned: bool

    @property
    def block(self) -> int:
        """Parameters of one layer: 12 h^2 in matrices, 13 h in biases and norms."""
        return 12 * self.shape.hidden**2 + 13 * self.shape.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        rows = self.shape.vocab * (1 if self.tied else 2) + (self.shape.seq if self.learned else 0) + 2
        return self.shape.layers * self.block + rows * self.shape.hidden


_MORE = {
    "gpt2-xl": Shape(48, 1600, 25, 50304, 1024),
    "opt-175b": Shape(96, 12288, 96, 50272, 2048),
}
"""Too large for the trainer's own presets: what the GPT-2 and OPT papers print."""

_ROTARY_UNTIED = ("neox-2.7b", "13b", "20b")
"""GPT-NeoX turns positions into rotations and has separate output weights."""

MODELS = {
    name: Model(name=name, shape=shape, tied=name not in _ROTARY_UNTIED, learned=name not in _ROTARY_UNTIED)
    for name, shape in {**PRESETS, **_MORE}.items()
}

GPU_GB = {
    "t4": 16, "v100-16": 16, "v100-32": 32, "l4": 24, "l40s": 48, "a6000": 48, "a100-40": 40, "a100-80": 80,
    "h100": 80, "h100-nvl": 94, "h200": 141, "b200": 180, "gb200": 186, "b300": 270, "mi300x": 192,
}  # fmt: skip
"""GB (1e9 bytes) of a GPU, from the vendors' sheets. Drivers report a little more; that is left as a reserve."""


def model_named(name: str) -> Model:
    """Return the model. Raises SizeError naming those there are."""
    if name not in MODELS:
        raise SizeError(_unknown("model", name, ", ".join(MODELS)))
    return MODELS[name]


def gpu_gb(name: str) -> int:
    """Return the GPU's memory in GB. Raises SizeError for an unknown one, and for one sold in several sizes."""
    if name in GPU_GB:
        return GPU_GB[name]
    sizes = [known for known in GPU_GB if known.startswith(f"{name}-")]
    if sizes:
        raise SizeError(_unknown("GPU", name, " or ".join(sizes), "is sold in several sizes"))
    raise SizeError(_unknown("GPU", name, ", ".join(GPU_GB)))


def largest_gb(gpu_type: str | None) -> int | None:
    """Return the memory in GB of the largest GPU that a node group's `gpu_type` can mean. None: it is not known."""
    if gpu_type is None:
        return None
    sizes = [gb for known, gb in GPU_GB.items() if known == gpu_type or known.startswith(f"{gpu_type}-")]
    return max(sizes, default=None)


def _unknown(what: str, name: str, known: str, rule: str = "is not known") -> str:
    return Problem(path=name, rule=rule, fix=f"write {known}").line(what)
