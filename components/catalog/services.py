"""Throughput and price of shared storage and gateways: two kinds of rows of the catalog. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from components.catalog.fact import Fact

HOURS_PER_MONTH = 730
"""What both clouds' price lists count as a month."""

_MIB_PER_MB = 1e6 / 2**20


class Throughput(Fact):
    """Write throughput of a storage, or the limit of a machine's disks."""

    mb_s_of_size: dict[int, float] = Field(default_factory=dict)
    mib_s: float = Field(default=0, ge=0)
    mib_s_per_gib: float = Field(default=0, ge=0)
    most_mib_s: float | None = Field(default=None, gt=0)
    most_mb_s: float | None = Field(default=None, gt=0)

    def write_mib_s(self, size_gib: int) -> float:
        """Return the MiB/s that a storage of that size writes at most; infinite if only other limits apply."""
        if self.mb_s_of_size:
            rate = _of_size(self.mb_s_of_size, size_gib)
            base = float("inf") if rate is None else rate * _MIB_PER_MB
        else:
            base = self.mib_s + self.mib_s_per_gib * size_gib or float("inf")
        limits = [self.most_mib_s, None if self.most_mb_s is None else self.most_mb_s * _MIB_PER_MB]
        return min(base, *(limit for limit in limits if limit is not None), float("inf"))


class ServicePrice(Fact):
    """List price of a storage or gateway in one region; no price field is set if none is known."""

    region: str
    priced: str = Field(default="", pattern=r"^(\d{4}-\d{2}-\d{2})?$")
    """Date of the price; empty if there is none."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    usd_per_gib_hour: float | None = Field(default=None, gt=0)
    usd_per_month_of_size: dict[int, float | None] = Field(default_factory=dict)
    """Dollars a month of each size in GiB; None if the price of that size is unknown."""
    billed_gib: int = Field(default=1, ge=1)

    def usd(self, size_gib: int) -> float | None:
        """Return dollars per hour of that size, or None if the price is unknown."""
        if self.usd_per_month_of_size:
            month = _of_size(self.usd_per_month_of_size, size_gib)
            return None if month is None else month / HOURS_PER_MONTH
        if self.usd_per_gib_hour is not None:
            return -(-size_gib // self.billed_gib) * self.billed_gib * self.usd_per_gib_hour
        return self.usd_per_hour


def _of_size(values: Mapping[int, float | None] | Mapping[int, float], size_gib: int) -> float | None:
    """Return the value of the smallest size that holds `size_gib`, or None if no size does or its value is unknown."""
    return next((value for size, value in sorted(values.items()) if size >= size_gib), None)
