"""Models supported by `yard size`."""

from __future__ import annotations

from dataclasses import dataclass

from yard.sizing.gpus import SizeError
from yard.workloads.train_model import PRESETS, Shape


@dataclass(frozen=True, kw_only=True)
class Model:
    """A GPT. `neox`: the model has rotary positions and separate output weights, as in GPT-NeoX."""

    name: str
    shape: Shape
    neox: bool

    @property
    def parameters(self) -> int:
        shape = self.shape
        return shape.parameters + ((shape.vocab - shape.seq) * shape.hidden if self.neox else 0)


_SHAPES = {**PRESETS, "gpt2-xl": Shape(48, 1600, 25, 50304, 1024)}
"""All models that `yard size` supports: the trainer's presets and the largest model from the GPT-2 paper."""

_NEOX = ("neox-2.7b", "13b", "20b")

MODELS = {name: Model(name=name, shape=shape, neox=name in _NEOX) for name, shape in _SHAPES.items()}


def model_named(name: str) -> Model:
    """Return the model with the given name. Raises SizeError if it is unknown."""
    if name not in MODELS:
        raise SizeError("model", name, "is unknown", f"use {', '.join(MODELS)}")
    return MODELS[name]
