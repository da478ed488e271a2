"""Rules of access that every cloud shares. A platform lists them under ids of its own."""

from __future__ import annotations

from collections.abc import Iterator

from components.checks.base import Planned
from components.errors import Problem


def ssh_has_a_way(planned: Planned) -> Iterator[Problem]:
    """Without a source, the rules let nobody reach the head, and the bring-up waits in vain."""
    access = planned.spec.access
    if access.via != "bastion" and not access.allow_ssh_from:
        yield Problem(
            path="cluster.access.allow_ssh_from",
            rule="nobody may reach the head over ssh, so it could never be brought up",
            fix="name the networks that you work from, for example [203.0.113.0/24], or use via: bastion",
        )
