"""GPU memory by name. Job files are checked with this module, so it imports only modules that load quickly."""

from __future__ import annotations

from yard.contract.errors import ClusterError, Problem

GPU_GB = {
    "t4": 16, "v100-16": 16, "v100-32": 32, "l4": 24, "a10": 24, "l40s": 48, "a6000": 48, "a100-40": 40, "a100-80": 80,
    "h100": 80, "h100-nvl": 94, "h200": 141, "b200": 180, "gb200": 186, "b300": 270, "mi300x": 192,
}  # fmt: skip
"""GPU memory in GB (1e9 bytes), from the vendors' data sheets. Drivers report slightly more."""


class SizeError(ClusterError):
    """A model, GPU or layout is unknown or invalid. `kind`: model, GPU or layout."""

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
