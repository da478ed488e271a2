"""Duration of the connection attempts during the bring-up."""

from __future__ import annotations

from components.cluster import bringup
from offline.command import ssh

_QUARTER_OF_AN_HOUR = 900


def test_retries_refused_connections_for_15_minutes() -> None:
    # Refused connections take no time, so the duration is the sum of the pauses. The offline plugin uses the same
    # pauses as pulumi-command: 100 ms, multiplied by 1.5 after each attempt, at most 5 s
    # (pulumi/pulumi@242a78a:sdk/go/common/util/retry/until.go, read 2026-11-22).
    assert (ssh._FIRST_DELAY, ssh._DELAY_GROWTH, ssh._LONGEST_DELAY) == (0.1, 1.5, 5.0)
    waited, pause = 0.0, ssh._FIRST_DELAY
    for _ in range(bringup._DIAL_ATTEMPTS):
        waited += pause
        pause = min(pause * ssh._DELAY_GROWTH, ssh._LONGEST_DELAY)
    assert _QUARTER_OF_AN_HOUR <= waited < _QUARTER_OF_AN_HOUR * 1.1, f"{waited:.0f} s"
