"""Models of the rows in throughput.yaml and service_prices.yaml, for shared storage and gateways."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from components.catalog.fact import Fact

HOURS_PER_MONTH = 730
"""Number of hours per month in the price lists of both clouds."""

_MIB_PER_MB = 1e6 / 2**20


class Throughput(Fact):
    """Write throughput of shared storage, or of the disks of a machine type.

    The fields are described in throughput.yaml.
    """

    mb_s_of_size: dict[int, float] = Field(default_factory=dict)
    mib_s: float = Field(default=0, ge=0)
    mib_s_per_gib: float = Field(default=0, ge=0)
    most_mib_s: float | None = Field(default=None, gt=0)
    most_mb_s: float | None = Field(default=None, gt=0)

    def write_mib_s(self, size_gib: int) -> float:
        """Return the maximum write throughput in MiB/s for a size, or infinity if there is no limit."""
        if self.mb_s_of_size:
            rate = _of_size(self.mb_s_of_size, size_gib)
            base = float("inf") if rate is None else rate * _MIB_PER_MB
        else:
            base = self.mib_s + self.mib_s_per_gib * size_gib or float("inf")
        limits = [self.most_mib_s, None if self.most_mb_s is None else self.most_mb_s * _MIB_PER_MB]
        return min(base, *(limit for limit in limits if limit is not None), float("inf"))


class ServicePrice(Fact):
    """List price of shared storage or a gateway in one region. If the price is unknown, all price fields are unset."""

    region: str
    priced: str = Field(default="", pattern=r"^(\d{4}-\d{2}-\d{2})?$")
    """Date on which the price was valid, or empty if the price is unknown."""
    usd_per_hour: float | None = Field(default=None, gt=0)
    usd_per_gib_hour: float | None = Field(default=None, gt=0)
    usd_per_month_of_size: dict[int, float | None] = Field(default_factory=dict)
    """Dollars per month for each size in GiB, or None if unknown."""
    billed_gib: int = Field(default=1, ge=1)

    def usd(self, size_gib: int) -> float | None:
        """Return the price in dollars per hour for a size, or None if the price is unknown."""
        if self.usd_per_month_of_size:
            month = _of_size(self.usd_per_month_of_size, size_gib)
            return None if month is None else month / HOURS_PER_MONTH
        if self.usd_per_gib_hour is not None:
            return -(-size_gib // self.billed_gib) * self.billed_gib * self.usd_per_gib_hour
        return self.usd_per_hour


def _of_size(values: Mapping[int, float | None] | Mapping[int, float], size_gib: int) -> float | None:
    """Return the value for the smallest size that is at least `size_gib`, or None if no such size or value exists."""
    return next((value for size, value in sorted(values.items()) if size >= size_gib), None)
