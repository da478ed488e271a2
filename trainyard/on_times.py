"""The head's record of when machines were on (faults.ON_TIMES). The head and yard share this module.

This module is part of the bundle, so it is limited to Python 3.10 and the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone

from trainyard.faults import HEAD

SERVICES = "services"
"""The part of the cost that consists of the shared storage and the gateway. They exist as long as the head's machine,
even while it is off."""

Intervals = Mapping[str, Sequence[tuple[float, float]]]
"""Mapping from machine (HEAD, SERVICES or the node's name) to the times between which it was on, in seconds since
1970."""


def parse_on_times(text: str, now: float) -> Intervals:
    """Return the intervals in the head's record. The interval of a machine that is on ends at `now`."""
    found: dict[str, list[tuple[float, float]]] = {}
    since: dict[str, float] = {}
    for time, node, state in re.findall(r"(?m)^(\d+) (\S+) (on|off)$", text):
        if state == "on":
            since.setdefault(node, float(time))
        elif node in since:
            found.setdefault(node, []).append((since.pop(node), float(time)))
    for node, start in since.items():
        found.setdefault(node, []).append((start, now))
    if HEAD in found:
        found[SERVICES] = [(found[HEAD][0][0], now)]
    return found


def month_of(time: float) -> str:
    """Return the month (YYYY-MM, UTC) of a time in seconds since 1970."""
    return f"{datetime.fromtimestamp(time, timezone.utc):%Y-%m}"  # noqa: UP017  (Python 3.10)


def month_bounds(month: str) -> tuple[float, float]:
    """Return the beginning and the end of a month (YYYY-MM, UTC) in seconds since 1970."""
    first = datetime.strptime(month, "%Y-%m").replace(tzinfo=timezone.utc)  # noqa: UP017  (Python 3.10)
    return first.timestamp(), (first + timedelta(days=32)).replace(day=1).timestamp()
