"""The memory of GPUs by name. A job file's sum needs no more than this, so it imports nothing that takes time."""

from __future__ import annotations

from components.errors import ClusterError, Problem

GPU_GB = {
    "t4": 16, "v100-16": 16, "v100-32": 32, "l4": 24, "a10": 24, "l40s": 48, "a6000": 48, "a100-40": 40, "a100-80": 80,
    "h100": 80, "h100-nvl": 94, "h200": 141, "b200": 180, "gb200": 186, "b300": 270, "mi300x": 192,
}  # fmt: skip
"""GB (1e9 bytes) of a GPU, from the vendors' sheets. Drivers report a little more; that is left as a reserve."""


class SizeError(ClusterError):
    """A model, GPU or layout that cannot be sized: it is unknown, or contradicts itself."""


def gpu_gb(name: str) -> int:
    """Return the GPU's memory in GB. Raises SizeError for an unknown one, and for one sold in several sizes."""
    if name in GPU_GB:
        return GPU_GB[name]
    sizes = [known for known in GPU_GB if known.startswith(f"{name}-")]
    if sizes:
        raise SizeError(unknown("GPU", name, " or ".join(sizes), "is sold in several sizes"))
    raise SizeError(unknown("GPU", name, ", ".join(GPU_GB)))


def largest_gb(gpu_type: str | None) -> int | None:
    """Return the memory in GB of a node group's `gpu_type`, the largest that it can mean. None: unknown."""
    if gpu_type is None or gpu_type in GPU_GB:
        return GPU_GB.get(gpu_type or "")
    return max((gb for known, gb in GPU_GB.items() if known.startswith(f"{gpu_type}-")), default=None)


def unknown(what: str, name: str, known: str, rule: str = "is not known") -> str:
    """Return the message about a name that is not right: what it is of, and the names there are."""
    return Problem(path=name, rule=rule, fix=f"write {known}").line(what)
