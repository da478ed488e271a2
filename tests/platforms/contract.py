"""What the tests of the platforms' contract ask of each platform: one module tests/platforms/<provider>/contract.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.platforms.recording import Answer, Built, Tell


def _counted(nodes: int) -> dict[str, Any]:
    return {"nodes__gpu__count": nodes, "limits": {}, "network": {"cidr": "10.77.0.0/20"}}


@dataclass(frozen=True, kw_only=True)
class Contract:
    """One platform, as a recorder in the engine's place sees it; the module calls it CONTRACT."""

    stack: str
    """A stack of the project that is the platform's; ssh reaches its head from `access.allow_ssh_from`."""
    answer: Answer
    tell: Tell
    addresses: Callable[[Built], Mapping[str, str]]
    """The private address that each host's machine asks for, by host."""
    user_data: Callable[[Built], Mapping[str, str]]
    """What each host's machine is given, by host, as text again."""
    ssh_from: Callable[[Built], set[str]]
    """Whom anything of the stack lets reach port 22 from outside, as the cloud spells networks."""
    smaller: Mapping[str, Any] = field(default_factory=lambda: _counted(2))
    larger: Mapping[str, Any] = field(default_factory=lambda: _counted(3))
    """The stack with some nodes, and with one more (tests/platforms/recording.py, stack_text)."""
    prepare: Callable[[pytest.MonkeyPatch], None] = lambda patch: None
    """Keeps from this machine what a real run would do to it."""
