"""Types for the description of a stack. The preview can compare it with a JSON description from an earlier revision.

Increase CONTRACT if keys or their meanings change. Descriptions with different contracts are not compared.
"""

from __future__ import annotations

from typing import TypedDict

CONTRACT = 2


class ProblemShape(TypedDict):
    """A broken rule. `check` is the id of the check, or empty for a schema violation."""

    check: str
    level: str
    path: str
    rule: str
    fix: str


class HostShape(TypedDict):
    """A planned machine. `group` is empty for the head."""

    name: str
    role: str
    group: str
    ip: str
    machine: str
    gpus: int
    gpu_type: str
    fabric: str
    placement: str
    capacity: str


class PlanShape(TypedDict):
    """A planned cluster. Its quotas apply to the region `place`, which is empty for platforms without quotas."""

    name: str
    provider: str
    place: str
    scheduler: str
    network: str
    image: str
    hosts: list[HostShape]


class PriceShape(TypedDict):
    """List prices of the machines in dollars per hour. `usd` is the sum of the known prices.

    `total` is None if a price is unknown. `dated` is the date of the oldest price, or empty if no price is known.
    """

    usd: float
    total: float | None
    unpriced: list[str]
    dated: str
    regions: list[str]
    sources: list[str]


class ServiceShape(TypedDict):
    """Shared storage or a gateway. `usd_per_hour` is None if unknown. `priced` is the date of the price."""

    name: str
    usd_per_hour: float | None
    region: str
    priced: str


class CheckpointShape(TypedDict):
    """A checkpoint of the largest model that a recipe can train on this stack. `minutes` is None if unknown."""

    model: str
    gb: float
    minutes: float | None


class StorageShape(TypedDict):
    """The shared storage. `write_mib_s` is its maximum write throughput, or None if unknown.

    `checkpoint` is None if no recipe's model fits.
    """

    kind: str
    size_gib: int
    write_mib_s: float | None
    gpus: int
    checkpoint: CheckpointShape | None


class QuotaShape(TypedDict):
    """How much of a quota the stack needs in the region `place`, in the quota's unit."""

    quota: str
    place: str
    amount: int


class Description(TypedDict):
    """The description of a stack file. The description of a rejected file contains `problems` and no plan.

    `user_data_bytes` contains the size of each role's user-data, and `user_data_limit` is the platform's maximum.
    """

    stack: str
    file: str
    problems: list[ProblemShape]
    remarks: list[ProblemShape]
    plan: PlanShape | None
    price: PriceShape | None
    services: list[ServiceShape]
    storage: StorageShape | None
    quota: list[QuotaShape]
    user_data_bytes: dict[str, int]
    user_data_limit: int
    files: dict[str, str]
