"""Checks for SSH access for all clouds. Each platform lists these checks with its own ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from components.plan.check import Broken, Level, Planned, check

_WIDEST: Final = 8
"""Prefix length of the largest network that is accepted. The largest private range is 10.0.0.0/8."""


@check(
    "ssh-open",
    Level.ERROR,
    "list the networks that you work from, for example your public address as a /32, or use via: bastion",
)
def ssh_is_not_open(planned: Planned) -> Iterator[Broken]:
    """Each network in access.allow_ssh_from is a /8 or smaller."""
    for index, network in enumerate(planned.plan.access.allow_ssh_from):
        if network.prefixlen < _WIDEST:
            yield Broken(
                path=f"cluster.access.allow_ssh_from.{index}",
                rule=f"{network} opens SSH to the whole internet or a large part of it",
            )


@check(
    "ssh-way",
    Level.ERROR,
    "list the networks that you work from, for example your public address as a /32, or use via: bastion",
)
def ssh_has_a_way(planned: Planned) -> Iterator[Broken]:
    """At least one network can connect to the head over SSH."""
    access = planned.plan.access
    if access.via != "bastion" and not access.allow_ssh_from:
        yield Broken(
            path="cluster.access.allow_ssh_from",
            rule="no network may connect to the head over SSH, so `up` would fail",
        )
