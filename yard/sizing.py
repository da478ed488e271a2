"""Estimates how much memory a model needs on each GPU in several layouts, and recommends a layout.

Because the checks of job files use this module, it imports only modules that load quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace

from trainyard.errors import ClusterError, Problem
from yard.workloads.train_model import PRESETS, Shape

GPU_GB = {
    "t4": 16, "v100-16": 16, "v100-32": 32, "l4": 24, "a10": 24, "l40s": 48, "a6000": 48, "a100-40": 40, "a100-80": 80,
    "h100": 80, "h100-nvl": 94, "h200": 141, "b200": 180, "gb200": 186, "b300": 270, "mi300x": 192,
}  # fmt: skip
"""GPU memory in GB (1e9 bytes) from the vendors' data sheets. Drivers report slightly more."""


class SizeError(ClusterError):
    """The model, GPU or layout called `name` is unknown or invalid. `kind` says which of the three it is."""

    def __init__(self, kind: str, name: str, rule: str, fix: str) -> None:
        super().__init__(Problem(path=name, rule=rule, fix=fix).line(kind))


def gpu_gb(name: str) -> int:
    """Return the GPU's memory in GB. Raises SizeError if the GPU is unknown or has several memory sizes."""
    if name in GPU_GB:
        return GPU_GB[name]
    if sizes := _sizes(name):
        raise SizeError("GPU", name, "has several memory sizes", f"use {' or '.join(sizes)}")
    raise SizeError("GPU", name, "is unknown", f"use {', '.join(GPU_GB)}")


def largest_gb(gpu_type: str | None) -> int | None:
    """Return the largest memory size in GB of a node group's `gpu_type`, or None if the type is unknown."""
    if gpu_type is None or gpu_type in GPU_GB:
        return GPU_GB.get(gpu_type or "")
    return max(_sizes(gpu_type).values(), default=None)


def _sizes(gpu_type: str) -> dict[str, int]:
    return {name: gb for name, gb in GPU_GB.items() if name.startswith(f"{gpu_type}-")}


@dataclass(frozen=True, kw_only=True)
class Model:
    """A GPT. If `neox` is set, it has rotary positions and separate output weights, like GPT-NeoX."""

    name: str
    shape: Shape
    neox: bool

    @property
    def parameters(self) -> int:
        shape = self.shape
        return shape.parameters + ((shape.vocab - shape.seq) * shape.hidden if self.neox else 0)


_NEOX = ("neox-2.7b", "13b", "20b")
MODELS = {
    name: Model(name=name, shape=shape, neox=name in _NEOX)
    for name, shape in {**PRESETS, "gpt2-xl": Shape(48, 1600, 25, 50304, 1024)}.items()
}
"""The trainer's presets, and the largest model from the GPT-2 paper."""


def model_named(name: str) -> Model:
    """Return a model. Raises SizeError if `name` is unknown."""
    if name not in MODELS:
        raise SizeError("model", name, "is unknown", f"use {', '.join(MODELS)}")
    return MODELS[name]


GB = 1e9

OVERHEAD = 3_000_000_000
"""Bytes that CUDA, NCCL and the framework use (2 to 5 GB were observed)."""

_ZERO_BUCKET = 500_000_000
"""Default number of elements in DeepSpeed's reduce and all-gather buckets (both 5e8)."""

_HALF, _FULL = 2, 4
_OPTIMIZER = 12
"""Bytes per parameter in mixed-precision Adam: an fp32 weight and two moments (arXiv 1910.02054, 3.1)."""

_OPTIMIZER_SHARDED, _GRADIENTS_SHARDED, _ALL_SHARDED = 1, 2, 3
"""ZeRO stages."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Tensor and pipeline degrees, and the ZeRO stage of the data-parallel replicas.

    If `in_node` is set (HSDP), states are sharded across a node's GPUs and replicated across nodes.
    """

    name: str
    zero: int
    tensor: int = 1
    pipeline: int = 1
    in_node: bool = False


@dataclass(frozen=True, kw_only=True)
class Machines:
    nodes: int
    gpus_per_node: int

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A GPU's micro-batch.

    If `recompute` is set, activations are recomputed in the backward pass instead of being stored. `gradient_bytes` is
    4 if gradients are accumulated in fp32. `zero_bucket` is the number of elements in a bucket of ZeRO 1 and 2.
    """

    sequences: int = 1
    recompute: bool = False
    gradient_bytes: int = _HALF
    zero_bucket: int = _ZERO_BUCKET


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory use, in bytes, of the GPU that needs the most memory."""

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


def _replicas(model: Model, layout: Layout, machines: Machines) -> int:
    """Return the data-parallel degree. Raises SizeError if the layout does not match the model or the GPUs."""
    size, heads, layers = layout.tensor * layout.pipeline, model.shape.heads, model.shape.layers
    if heads % layout.tensor:
        rule = f"tp {layout.tensor} does not divide the {heads} heads of {model.name}"
        fix = "use a tensor degree that divides them"
    elif layout.pipeline > layers:
        rule, fix = f"{model.name} has {layers} layers, fewer than pp {layout.pipeline}", "use fewer stages"
    elif machines.gpus % size:
        rule = f"needs {size} GPUs per replica, which does not divide {machines.gpus}"
        fix = "use degrees whose product divides the number of GPUs"
    else:
        return machines.gpus // size
    raise SizeError("layout", layout.name, rule, fix)


def _buffers(model: Model, layout: Layout, copies: int, batch: Batch) -> int:
    """Return the size in bytes of the buffers for collectives.

    - DDP has buckets for all gradients (torch's documentation of gradient_as_bucket_view).
    - ZeRO 1 and 2 have a bucket for reductions and one for all-gathers.
    - ZeRO 3 holds the gathered weights of two units and the fp32 gradients of one.
    """
    if layout.zero in {_OPTIMIZER_SHARDED, _GRADIENTS_SHARDED}:
        return 2 * _HALF * batch.zero_bucket
    if copies == 1:
        return 0
    if not layout.zero:
        return round(model.parameters / (layout.tensor * layout.pipeline) * batch.gradient_bytes)
    unit = max(model.shape.layer_parameters, model.shape.vocab * model.shape.hidden)
    return (2 * _HALF + _FULL) * unit // layout.tensor


def _activations(model: Model, layout: Layout, batch: Batch) -> int:
    """Return the size in bytes of the stored activations: s*b*h*(10 + 24/tp) per layer (arXiv 2205.05198).

    The paper's term 5as/h is omitted, because flash attention does not store these values. The pipeline degree cancels
    out, because the first stage stores a micro-batch for each stage. With recomputation, only the input of each layer
    (2*s*b*h) and the activations of one layer are stored.
    """
    shape = model.shape
    row = shape.seq * batch.sequences * shape.hidden
    layer = round(row * (10 + 24 / layout.tensor))
    return 2 * row * shape.layers + layer if batch.recompute else layer * shape.layers


MOST_NODES = 256


@dataclass(frozen=True, kw_only=True)
class Sized:
    """A layout, the memory that it needs, and the GPU's memory in GB."""

    layout: Layout
    batch: Batch
    memory: Memory
    gpu_gb: float

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.gpu_gb * GB


def layouts(model: Model, machines: Machines) -> Iterator[Layout]:
    """Yield the useful layouts in order of increasing communication: data parallelism, then model parallelism.

    Tensor parallelism stays within a node, where links are fast, while pipeline stages can span nodes (arXiv
    2104.04473). Model-parallel layouts use ZeRO 1, because ZeRO 2 and 3 would reduce gradients in each micro-batch.
    """
    names = ["ddp", "zero1", "zero2", *(["hsdp"] if machines.nodes > 1 else []), "fsdp"]
    slices = []
    for tensor in (n for n in range(1, machines.gpus_per_node + 1) if machines.gpus_per_node % n == 0):
        for pipeline in (n for n in range(1, machines.gpus + 1) if machines.gpus // tensor % n == 0):
            if tensor * pipeline > 1 and model.shape.heads % tensor == 0 and pipeline <= model.shape.layers:
                degrees = [f"{kind}{degree}" for kind, degree in (("tp", tensor), ("pp", pipeline)) if degree > 1]
                slices.append((tensor * pipeline, pipeline, "-".join([*degrees, "zero1"])))
    for name in [*names, *(name for _, _, name in sorted(slices))]:
        yield parse_layout(name)


def size(model: Model, layout: Layout, machines: Machines, batch: Batch, gpu_gb: float) -> Sized:
    """Return the memory that the most heavily used GPU needs. Raises SizeError if the layout does not match.

    A GPU stores N/(tp*pp) parameters. A parameter needs 2 bytes for the weight, 2 or 4 for the gradient, and 12 for the
    optimizer. ZeRO shards the optimizer's state from stage 1, gradients from stage 2, and weights in stage 3 (arXiv
    1910.02054).
    """
    copies = _replicas(model, layout, machines)
    shards = min(copies, machines.gpus_per_node) if layout.in_node else copies
    slice_ = model.parameters / (layout.tensor * layout.pipeline)

    def share(size: int, stage: int) -> int:
        return round(slice_ * size / (shards if layout.zero >= stage else 1))

    memory = Memory(
        weights=share(_HALF, _ALL_SHARDED),
        gradients=share(batch.gradient_bytes, _GRADIENTS_SHARDED),
        optimizer=share(_OPTIMIZER, _OPTIMIZER_SHARDED),
        buffers=_buffers(model, layout, copies, batch),
        activations=_activations(model, layout, batch),
        logits=_FULL * model.shape.seq * batch.sequences * model.shape.vocab // layout.tensor,
        overhead=OVERHEAD,
    )
    return Sized(layout=layout, batch=batch, memory=memory, gpu_gb=gpu_gb)


def first_fit(
    model: Model, machines: Machines, batch: Batch, gpu_gb: float, layout: Layout | None = None
) -> Sized | None:
    """Return the first layout that fits, or None if no layout fits. Recomputation is tried last.

    If `layout` is given, no other layout is tried.
    """
    for tried in dict.fromkeys((batch, replace(batch, recompute=True))):
        for candidate in [layout] if layout else layouts(model, machines):
            try:
                found = size(model, candidate, machines, tried, gpu_gb)
            except SizeError:
                continue  # the layout does not match the model or the number of GPUs
            if found.fits:
                return found
    return None


def fewest_nodes(
    model: Model, gpus_per_node: int, batch: Batch, gpu_gb: float, layout: Layout | None = None
) -> tuple[int, Sized] | None:
    """Return the smallest number of nodes on which the model fits, and the layout, or None if MOST_NODES are too few.

    If `layout` is given, no other layout is tried.
    """
    for nodes in range(1, MOST_NODES + 1):
        machines = Machines(nodes=nodes, gpus_per_node=gpus_per_node)
        if found := first_fit(model, machines, batch, gpu_gb, layout):
            return nodes, found
    return None


def refusal(model: str, gpu_type: str | None, machines: Machines, layout: str = "fsdp") -> str | None:
    """Return why a model cannot fit on the machines, or None if it can fit or the GPUs are unknown.

    The estimate is a lower bound, because it assumes one sequence per GPU, recomputation, and the largest memory size
    of `gpu_type`. Raises SizeError if the model is unknown or the layout does not match.
    """
    gb = largest_gb(gpu_type)
    if gb is None or machines.gpus == 0:
        return None
    named, chosen, batch = model_named(model), parse_layout(layout), Batch(recompute=True)
    found = size(named, chosen, machines, batch, gb)
    if found.fits:
        return None
    fitting = fewest_nodes(named, machines.gpus_per_node, batch, gb, chosen)
    enough = f"{fitting[0]} such nodes are sufficient" if fitting else f"{MOST_NODES} such nodes are not sufficient"
    return f"{model} with {layout} on {machines.gpus} {gpu_type} of {gb} GB needs {breakdown(found)}; {enough}"


def shown_layouts(model: Model, machines: Machines) -> list[Layout]:
    """Return the layouts in which a replica of the model uses one GPU, one node or all nodes."""
    replica_sizes = {1, machines.gpus_per_node, machines.gpus}
    return [layout for layout in layouts(model, machines) if layout.tensor * layout.pipeline in replica_sizes]


def advice(chosen: Sized | None, model: Model, machines: Machines, batch: Batch, gpu_gb: float) -> str:
    """Return a sentence that recommends the chosen layout, or the number of nodes if no layout fits."""
    where = ""
    if chosen is None:
        if (found := fewest_nodes(model, machines.gpus_per_node, batch, gpu_gb)) is None:
            few = f"{MOST_NODES} nodes with {machines.gpus_per_node} such GPUs are not sufficient"
            return f"{few}. Use GPUs with more memory."
        nodes, chosen = found
        where = f"{nodes} nodes with "
    name = chosen.layout.name + (" with recomputation" if chosen.batch.recompute else "")
    return f"Use {where}{name}: {chosen.memory.total / GB:.1f} of {chosen.gpu_gb:g} GB."


def breakdown(sized: Sized) -> str:
    terms = " + ".join(f"{size / GB:.1f} {part}" for part, size in asdict(sized.memory).items())
    return f"{sized.memory.total / GB:.1f} GB per GPU ({terms})"
