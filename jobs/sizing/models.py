"""What is sized: models by name."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.sizing.gpus import SizeError, unknown
from jobs.workloads.train import PRESETS, Shape


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


_MORE = {"gpt2-xl": Shape(48, 1600, 25, 50304, 1024)}
"""What the GPT-2 paper prints, and the trainer has no preset for."""

_ROTARY_UNTIED = ("neox-2.7b", "13b", "20b")
"""GPT-NeoX turns positions into rotations and has separate output weights."""

MODELS = {
    name: Model(name=name, shape=shape, tied=name not in _ROTARY_UNTIED, learned=name not in _ROTARY_UNTIED)
    for name, shape in {**PRESETS, **_MORE}.items()
}


def model_named(name: str) -> Model:
    """Return the model. Raises SizeError naming those there are."""
    if name not in MODELS:
        raise SizeError(unknown("model", name, ", ".join(MODELS)))
    return MODELS[name]
