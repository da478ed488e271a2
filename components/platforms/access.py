"""Rules of access that every cloud shares. A platform lists them under ids of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from components.checks.base import Planned
from components.errors import Problem

_WIDEST: Final = 8
"""Bits of the widest network that one organisation may own (RFC 1918's largest, and the largest ever given away)."""


def ssh_is_not_open(planned: Planned) -> Iterator[Problem]:
    """Ssh is for those who work with the cluster: what the whole world may try, it tries within minutes."""
    for place, network in enumerate(planned.spec.access.allow_ssh_from):
        if network.prefixlen < _WIDEST:
            yield Problem(
                path=f"cluster.access.allow_ssh_from.{place}",
                rule=f"{network} opens ssh to the world, or to much of it",
                fix="name the networks that you work from, for example 203.0.113.0/24, or use via: bastion",
            )


def ssh_has_a_way(planned: Planned) -> Iterator[Problem]:
    """Without a source, the rules let nobody reach the head, and the bring-up waits in vain."""
    access = planned.spec.access
    if access.via != "bastion" and not access.allow_ssh_from:
        yield Problem(
            path="cluster.access.allow_ssh_from",
            rule="nobody may reach the head over ssh, so it could never be brought up",
            fix="name the networks that you work from, for example [203.0.113.0/24], or use via: bastion",
        )
