"""The form of a stack's description. It crosses from one revision's process to another's as JSON: raise CONTRACT when
a key changes its meaning, and the two say that they cannot be compared instead of comparing wrongly."""

from __future__ import annotations

from typing import NotRequired, TypedDict

CONTRACT = 1


class ProblemShape(TypedDict):
    """One broken rule, and the check that found it; `check` is empty where the schema itself did."""

    check: str
    level: str
    path: str
    rule: str
    fix: str


class HostShape(TypedDict):
    """One machine to be. `group` is empty for the head."""

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
    """The cluster to be. `place` is where its quotas count; empty where none do."""

    name: str
    provider: str
    place: str
    scheduler: str
    network: str
    image: str
    hosts: list[HostShape]


class PriceShape(TypedDict):
    """List prices of the machines by the hour: `usd` is what is known of them, `total` None where a part is unknown.

    `dated` says when the oldest of the used prices was read, and is empty where none was used; `regions` says of where
    they are, and did not always.
    """

    usd: float
    total: float | None
    unpriced: list[str]
    dated: str
    regions: NotRequired[list[str]]


class ServiceShape(TypedDict):
    """A shared storage or gateway that the stack buys. `usd_per_hour` is None if unknown; `priced` is its date."""

    name: str
    usd_per_hour: float | None
    region: str
    priced: str


class CheckpointShape(TypedDict):
    """A checkpoint of the largest model that a recipe trains on this stack. `minutes` is None if unknown."""

    model: str
    gb: float
    minutes: float | None


class StorageShape(TypedDict):
    """The shared storage. `write_mib_s` is its limit, None if unknown; `checkpoint` is None if no model fits."""

    kind: str
    size_gib: int
    write_mib_s: float | None
    gpus: int
    checkpoint: CheckpointShape | None


class QuotaShape(TypedDict):
    """What the machines take of one quota in one place, in the quota's own unit."""

    quota: str
    place: str
    amount: int


class Description(TypedDict):
    """A stack file as one revision reads it. A refused one has `problems` and no plan.

    `user_data_bytes` is what the machines of a role are given, `user_data_limit` what their platform takes.
    """

    stack: str
    file: str
    problems: list[ProblemShape]
    remarks: list[ProblemShape]
    plan: PlanShape | None
    price: PriceShape | None
    services: NotRequired[list[ServiceShape]]
    storage: NotRequired[StorageShape | None]
    quota: list[QuotaShape]
    user_data_bytes: dict[str, int]
    user_data_limit: int
    files: dict[str, str]
