"""The GPT that train.py trains: its shapes, FLOPs and modules. Importing this file does not need torch."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """A GPT's number of layers, hidden size, number of attention heads, vocabulary size and sequence length."""

    layers: int
    hidden: int
    heads: int
    vocab: int
    seq: int

    @property
    def layer_parameters(self) -> int:
        """The number of parameters in one layer: 12 h^2 in matrices, and 13 h in biases and norms."""
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def parameters(self) -> int:
        """The total number of parameters with tied embeddings and learned positions."""
        return self.layers * self.layer_parameters + (self.vocab + self.seq + 2) * self.hidden


PRESETS = {
    "tiny": Shape(2, 64, 4, 512, 64),
    "gpt2-124m": Shape(12, 768, 12, 50304, 1024),
    "opt-125m": Shape(12, 768, 12, 50272, 2048),
    "neox-2.7b": Shape(32, 2560, 32, 50432, 2048),
    "opt-6.7b": Shape(32, 4096, 32, 50272, 2048),
    "13b": Shape(44, 4096, 64, 50432, 2048),
    "20b": Shape(44, 6144, 64, 50432, 2048),
    "opt-175b": Shape(96, 12288, 96, 50272, 2048),
}
"""Mapping from preset to shape. 13b is 20b with a hidden size of 4096, as in Lambda's post about scaling."""

PEAK_TFLOPS = {
    "A100": 312, "H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "B200": 2250, "A6000": 154.85,
}  # fmt: skip
"""Mapping from GPU to dense bf16 TFLOPS, from vendors' data sheets as listed in torchtitan. The first match applies."""


def hardware_flops(shape: Shape, batch: int, recompute: bool) -> float:
    """Return the FLOPs of one step according to gpt-neox's formula (Narayanan et al. 2021, eq. 3)."""
    passes = 4 if recompute else 3
    h, s = shape.hidden, shape.seq
    return 24 * passes * batch * s * shape.layers * h**2 * (1 + s / (6 * h) + shape.vocab / (16 * shape.layers * h))


def model_flops(shape: Shape, batch: int) -> float:
    """Return the FLOPs of one step without recomputation: 6N + 12 l h s per token, as torchtitan defines MFU."""
    per_token = 6 * shape.parameters + 12 * shape.layers * shape.hidden * shape.seq
    return per_token * batch * shape.seq


def peak_tflops(device: str) -> float | None:
    """Return a GPU's peak bf16 TFLOPS, or None if the GPU is not in PEAK_TFLOPS."""
    return next((peak for name, peak in PEAK_TFLOPS.items() if name in device), None)


def rates(  # noqa: PLR0913  (all are needed)
    shape: Shape, batch: int, ranks: int, seconds: float, peak: float | None, *, recompute: bool
) -> dict[str, float | None]:
    """Return the rates of a step that took `seconds`. `peak` is the GPU's peak bf16 TFLOPS, or None."""
    tokens = batch * shape.seq
    model = model_flops(shape, batch) / seconds / ranks / 1e12
    return {
        "step_ms": seconds * 1e3,
        "samples_per_s": batch / seconds,
        "tokens_per_s": tokens / seconds,
        "tokens_per_s_per_rank": tokens / seconds / ranks,
        "model_tflops": model,
        "hardware_tflops": hardware_flops(shape, batch, recompute) / seconds / ranks / 1e12,
        "mfu": model / peak if peak else None,
    }


def percentile(ordered: list[float], share: float) -> float:
    """Return a percentile of sorted values by the nearest-rank method. `share` is from 0 to 1."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def step_times(durations: list[float]) -> dict[str, float]:
    """Return the median, 95th percentile and maximum of `durations` (at least one, in seconds) in milliseconds."""
    ordered = sorted(durations)
    return {
        "step_ms_p50": statistics.median(ordered) * 1e3,
        "step_ms_p95": percentile(ordered, 0.95) * 1e3,
        "step_ms_max": ordered[-1] * 1e3,
    }


def build_model(torch: Any, shape: Shape, recompute: bool) -> Any:
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            h = shape.hidden
            self.norm_1, self.norm_2 = nn.LayerNorm(h), nn.LayerNorm(h)
            self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
            self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

        def forward(self, x: Any) -> Any:
            batch, seq, h = x.shape
            split = self.qkv(self.norm_1(x)).view(batch, seq, 3, shape.heads, h // shape.heads).permute(2, 0, 3, 1, 4)
            mixed = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, h))
            return x + self.down(functional.gelu(self.up(self.norm_2(x)), approximate="tanh"))

    class Head(nn.Module):  # type: ignore[misc, name-defined]
        """The last norm, the logits and the loss. torch.compile fuses them, so that no fp32 logits are stored."""

        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(shape.hidden)
            self.logits = nn.Linear(shape.hidden, shape.vocab, bias=False)

        def forward(self, x: Any, y: Any) -> Any:
            return functional.cross_entropy(self.logits(self.norm(x)).flatten(0, 1).float(), y.flatten())

    class Gpt(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(shape.vocab, shape.hidden)
            self.positions = nn.Embedding(shape.seq, shape.hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.head = Head()

        def forward(self, x: Any, y: Any) -> Any:
            hidden = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
            for block in self.blocks:
                if recompute:
                    hidden = torch.utils.checkpoint.checkpoint(block, hidden, use_reentrant=False)
                else:
                    hidden = block(hidden)
            return self.head(hidden, y)

        def init_weights(self, seed: int) -> None:
            generator = torch.Generator(device=self.tokens.weight.device).manual_seed(seed)
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02, generator=generator)
                else:
                    nn.init.constant_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0)

    return Gpt()
