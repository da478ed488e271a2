"""The memory of one GPU, part by part. GB is 1e9 bytes; every formula names its source.

jobs.sizing.advice builds on this. Example::

    memory = estimate(model_named("opt-175b"), parse_layout("fsdp"), Machines(nodes=2, gpus_per_node=8), Batch())
    memory.states / 1e9, memory.total / 1e9   # 174.6, 189.2
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from jobs.sizing.gpus import SizeError
from jobs.sizing.models import Model

OVERHEAD = 3_000_000_000
"""Bytes that CUDA's context, NCCL's buffers and the framework take: 2 to 5 GB are seen."""

_ZERO_BUCKET = 500_000_000
"""Elements of DeepSpeed's reduce and all-gather buckets unless its configuration says otherwise (both 5e8)."""

_HALF, _FULL = 2, 4
_OPTIMIZER = 12
"""Bytes a parameter of Adam in mixed precision: the fp32 weights and two fp32 moments (ZeRO, arXiv 1910.02054, 3.1)."""

_NOT_SHARDED, _OPTIMIZER_SHARDED, _GRADIENTS_SHARDED, _ALL_SHARDED = range(4)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a model is spread: tensor and pipeline parallel degrees, and the ZeRO stage of the data-parallel rest.

    `in_node` (HSDP): states are sharded over the GPUs of a node and replicated across nodes.
    """

    name: str
    zero: int
    tensor: int = 1
    pipeline: int = 1
    in_node: bool = False


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The GPUs there are."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What a GPU works on at a time. `recompute`: activations are computed again in the backward pass, not kept.

    `gradient_bytes` is 4 where gradients are summed up in fp32.
    """

    sequences: int = 1
    recompute: bool = False
    gradient_bytes: int = _HALF
    zero_bucket: int = _ZERO_BUCKET


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the fullest GPU."""

    weights: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    logits: int
    overhead: int

    @property
    def states(self) -> int:
        """What the batch does not change: weights, gradients and the optimizer."""
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """All of it."""
        return sum(getattr(self, part.name) for part in fields(self))


_LAYOUT = re.compile(r"(?:tp(\d+))?-?(?:pp(\d+))?-?(ddp|hsdp|fsdp|zero[0-3])?")
_STAGES = {"ddp": 0, "hsdp": _ALL_SHARDED, "fsdp": _ALL_SHARDED, **{f"zero{stage}": stage for stage in range(4)}}


def parse_layout(text: str) -> Layout:
    """Return a layout from its name: ddp, zero1, zero2, zero3, fsdp, hsdp, tp4-pp6, tp2-pp4-zero1. Raises SizeError."""
    match = _LAYOUT.fullmatch(text)
    if not text or not match or "0" in match.group(1, 2):
        raise SizeError(
            f"layout:{text}: is no layout. "
            "Fix: write ddp, zero1, zero2, zero3, fsdp, hsdp, or for example tp4-pp6-zero1."
        )
    kind = match[3] or "zero1"
    return Layout(
        name=text,
        zero=_STAGES[kind],
        tensor=int(match[1] or 1),
        pipeline=int(match[2] or 1),
        in_node=kind == "hsdp",
    )


def replicas(layout: Layout, machines: Machines) -> int:
    """Return the data-parallel degree. Raises SizeError when the layout does not divide the GPUs."""
    slices = layout.tensor * layout.pipeline
    if machines.gpus % slices:
        raise SizeError(
            f"layout:{layout.name}: takes {slices} GPUs for a replica, which does not divide {machines.gpus}. "
            "Fix: choose degrees whose product does."
        )
    return machines.gpus // slices


def estimate(model: Model, layout: Layout, machines: Machines, batch: Batch) -> Memory:
    """Return the memory of the fullest GPU. Raises SizeError when layout, model and GPUs do not fit together.

    States, bytes a parameter of this GPU's slice N/(tp*pp): 2 weights, 2 (or 4) gradients, 12 optimizer, each divided
    by the shards from ZeRO stage 3, 2 and 1 on (ZeRO, arXiv 1910.02054).
    """
    check_divides(model, layout)
    copies = replicas(layout, machines)
    shards = min(copies, machines.gpus_per_node) if layout.in_node else copies
    slice_ = model.parameters / (layout.tensor * layout.pipeline)

    def share(size: int, stage: int) -> int:
        return round(slice_ * size / (shards if layout.zero >= stage else 1))

    return Memory(
        weights=share(_HALF, _ALL_SHARDED),
        gradients=share(batch.gradient_bytes, _GRADIENTS_SHARDED),
        optimizer=share(_OPTIMIZER, _OPTIMIZER_SHARDED),
        buffers=_buffers(model, layout, copies, batch),
        activations=_activations(model, layout, batch),
        logits=_FULL * model.shape.seq * batch.sequences * model.shape.vocab // layout.tensor,
        overhead=OVERHEAD,
    )


def check_divides(model: Model, layout: Layout) -> None:
    """Raise SizeError when the tensor degree does not divide the heads or there are fewer layers than stages."""
    if model.shape.heads % layout.tensor:
        raise SizeError(
            f"layout:{layout.name}: tp {layout.tensor} does not divide the {model.shape.heads} heads of {model.name}. "
            "Fix: choose a tensor degree that does."
        )
    if layout.pipeline > model.shape.layers:
        raise SizeError(
            f"layout:{layout.name}: {model.name} has {model.shape.layers} layers for pp {layout.pipeline}. "
            "Fix: choose fewer stages."
        )


def _buffers(model: Model, layout: Layout, copies: int, batch: Batch) -> int:
    """Return what collectives hold beside the states.

    DDP: buckets as large as all gradients (torch's gradient_as_bucket_view documentation). ZeRO 1 and 2: a reduce and
    an all-gather bucket. ZeRO 3: the gathered weights of one unit and of the next, and the gradients of one in fp32.
    """
    if layout.zero in {_OPTIMIZER_SHARDED, _GRADIENTS_SHARDED}:
        return 2 * _HALF * batch.zero_bucket
    if copies == 1:
        return 0
    if layout.zero == _NOT_SHARDED:
        return round(model.parameters / (layout.tensor * layout.pipeline) * batch.gradient_bytes)
    unit = max(model.block, model.shape.vocab * model.shape.hidden)
    return (2 * _HALF + _FULL) * unit // layout.tensor


def _activations(model: Model, layout: Layout, batch: Batch) -> int:
    """Return what the forward pass keeps: s*b*h*(10 + 24/tp) bytes a layer (Korthikanti et al., arXiv 2205.05198).

    Flash attention is taken for granted, so the paper's 5as/h is left out. The first pipeline stage keeps as many
    batches as there are stages, so the degree does not divide it. Recomputing keeps each layer's input, 2*s*b*h, and
    one layer in full.
    """
    shape = model.shape
    row = shape.seq * batch.sequences * shape.hidden
    layer = round(row * (10 + 24 / layout.tensor))
    return 2 * row * shape.layers + layer if batch.recompute else layer * shape.layers
