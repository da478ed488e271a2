"""Estimates the memory that training a model needs on one GPU. Each formula cites its source."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from yard.sizing.gpus import SizeError
from yard.sizing.models import Model

GB = 1e9

OVERHEAD = 3_000_000_000
"""Bytes used by the CUDA context, NCCL's buffers and the framework. Observed: 2 to 5 GB."""

_ZERO_BUCKET = 500_000_000
"""Default number of elements in DeepSpeed's reduce and all-gather buckets (both 5e8)."""

_HALF, _FULL = 2, 4
_OPTIMIZER = 12
"""Bytes that mixed-precision Adam stores per parameter: an fp32 weight and two moments (arXiv 1910.02054, 3.1)."""

_NOT_SHARDED, _OPTIMIZER_SHARDED, _GRADIENTS_SHARDED, _ALL_SHARDED = range(4)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Tensor and pipeline degrees, and the ZeRO stage of the data-parallel replicas.

    `in_node` (HSDP): states are sharded across the GPUs in a node and replicated across nodes.
    """

    name: str
    zero: int
    tensor: int = 1
    pipeline: int = 1
    in_node: bool = False


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The machines for a training run."""

    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A GPU's micro-batch.

    `recompute`: activations are recomputed in the backward pass instead of stored. `gradient_bytes`: bytes per
    gradient, 4 if gradients are accumulated in fp32. `zero_bucket`: number of elements in a bucket in ZeRO stages 1 and
    2.
    """

    sequences: int = 1
    recompute: bool = False
    gradient_bytes: int = _HALF
    zero_bucket: int = _ZERO_BUCKET


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes on the GPU that needs the most memory."""

    weights: int
    gradients: int
    optimizer: int
    buffers: int
    activations: int
    logits: int
    overhead: int

    @property
    def total(self) -> int:
        return sum(getattr(self, part.name) for part in fields(self))


_LAYOUT = re.compile(r"(?:tp(\d+))?-?(?:pp(\d+))?-?(ddp|hsdp|fsdp|zero[0-3])?")
_STAGES = {"ddp": 0, "hsdp": _ALL_SHARDED, "fsdp": _ALL_SHARDED, **{f"zero{stage}": stage for stage in range(4)}}


def parse_layout(text: str) -> Layout:
    """Return the layout for a name such as ddp, hsdp, tp4-pp6 or tp2-pp4-zero1. Raises SizeError."""
    match = _LAYOUT.fullmatch(text)
    if not text or not match or "0" in match.group(1, 2):
        fix = "use ddp, zero1, zero2, zero3, fsdp, hsdp, or for example tp4-pp6-zero1"
        raise SizeError("layout", text, "is not a layout", fix)
    kind = match[3] or "zero1"
    tensor, pipeline = int(match[1] or 1), int(match[2] or 1)
    return Layout(name=text, zero=_STAGES[kind], tensor=tensor, pipeline=pipeline, in_node=kind == "hsdp")


def _replicas(layout: Layout, machines: Machines) -> int:
    """Return the data-parallel degree."""
    size = layout.tensor * layout.pipeline
    if machines.gpus % size:
        rule = f"needs {size} GPUs per replica, which does not divide {machines.gpus}"
        raise SizeError("layout", layout.name, rule, "use degrees whose product divides the number of GPUs")
    return machines.gpus // size


def estimate(model: Model, layout: Layout, machines: Machines, batch: Batch) -> Memory:
    """Return the memory needed on the most loaded GPU. Raises SizeError if layout, model and GPUs are incompatible.

    A GPU stores N/(tp*pp) parameters. Each parameter needs 2 bytes for the weight, 2 or 4 for the gradient, and 12 for
    the optimizer. Optimizer state is sharded from ZeRO stage 1 onwards, gradients from stage 2 onwards, and weights in
    stage 3 (arXiv 1910.02054).
    """
    _check_model(model, layout)
    copies = _replicas(layout, machines)
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


def _check_model(model: Model, layout: Layout) -> None:
    if model.shape.heads % layout.tensor:
        rule = f"tp {layout.tensor} does not divide the {model.shape.heads} heads of {model.name}"
        raise SizeError("layout", layout.name, rule, "use a tensor degree that divides them")
    if layout.pipeline > model.shape.layers:
        rule = f"{model.name} has {model.shape.layers} layers, fewer than pp {layout.pipeline}"
        raise SizeError("layout", layout.name, rule, "use fewer stages")


def _buffers(model: Model, layout: Layout, copies: int, batch: Batch) -> int:
    """Return the size of the buffers for collectives in bytes.

    - DDP: buckets with the size of all gradients (torch's documentation of gradient_as_bucket_view)
    - ZeRO 1 and 2: one reduce bucket and one all-gather bucket
    - ZeRO 3: the gathered weights of two units and the fp32 gradients of one unit
    """
    if layout.zero in {_OPTIMIZER_SHARDED, _GRADIENTS_SHARDED}:
        return 2 * _HALF * batch.zero_bucket
    if copies == 1:
        return 0
    if layout.zero == _NOT_SHARDED:
        return round(model.parameters / (layout.tensor * layout.pipeline) * batch.gradient_bytes)
    unit = max(model.shape.layer_parameters, model.shape.vocab * model.shape.hidden)
    return (2 * _HALF + _FULL) * unit // layout.tensor


def _activations(model: Model, layout: Layout, batch: Batch) -> int:
    """Return the size of stored activations in bytes: s*b*h*(10 + 24/tp) per layer (Korthikanti et al., arXiv
    2205.05198).

    The paper's term 5as/h is omitted, because flash attention does not store these values. The first pipeline stage
    stores one micro-batch per stage, so the pipeline degree cancels out. With recomputation, the input of each layer
    (2*s*b*h) and all activations of one layer are stored.
    """
    shape = model.shape
    row = shape.seq * batch.sequences * shape.hidden
    layer = round(row * (10 + 24 / layout.tensor))
    return 2 * row * shape.layers + layer if batch.recompute else layer * shape.layers
