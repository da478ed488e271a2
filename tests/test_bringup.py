"""How long the bring-up tries to reach a head that refuses connections."""

from __future__ import annotations

from components import bringup
from offline.command import link

_QUARTER_OF_AN_HOUR = 900


def test_a_refusing_head_is_tried_for_a_quarter_of_an_hour() -> None:
    # A refused connection takes no time of its own: only the pauses of pulumi-command count, which the stand-in shares
    # (pulumi/pulumi@242a78a:sdk/go/common/util/retry/until.go: 100 ms, times 1.5, at most 5 s; read 2026-11-22).
    assert (link._FIRST_DELAY, link._DELAY_GROWTH, link._LONGEST_DELAY) == (0.1, 1.5, 5.0)
    waited, pause = 0.0, link._FIRST_DELAY
    for _ in range(bringup._DIAL_ATTEMPTS):
        waited += pause
        pause = min(pause * link._DELAY_GROWTH, link._LONGEST_DELAY)
    assert _QUARTER_OF_AN_HOUR <= waited < _QUARTER_OF_AN_HOUR * 1.1, f"{waited:.0f} s"
