"""Test data for a platform. Each platform has a module tests/components/platforms/<provider>/contract.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.components.platforms.recording import Answer, Built, Tell


def _counted(nodes: int) -> dict[str, Any]:
    return {"nodes__gpu__count": nodes, "limits": {}, "network": {"cidr": "10.77.0.0/20"}}


@dataclass(frozen=True, kw_only=True)
class Contract:
    """Test data for a platform. The platform's module defines its contract as CONTRACT."""

    stack: str
    """Name of a stack on the platform."""
    answer: Answer
    tell: Tell
    addresses: Callable[[Built], Mapping[str, str]]
    """Returns the private address of each machine by host name."""
    user_data: Callable[[Built], Mapping[str, str]]
    """Returns the decoded user-data of each machine by host name."""
    ssh_from: Callable[[Built], set[str]]
    """Returns the source ranges that can connect to port 22, in the cloud's notation."""
    smaller: Mapping[str, Any] = field(default_factory=lambda: _counted(2))
    larger: Mapping[str, Any] = field(default_factory=lambda: _counted(3))
    """Edits to the stack for a cluster, and for the same cluster with an additional node."""
    prepare: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    """Replaces functions that would modify this computer."""
