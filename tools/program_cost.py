"""What the Pulumi program costs in its own process: whose code takes the processor's time, and how much memory.

A timer interrupts the program at every hundredth of a second of processor time and looks whose code it meets.
"""

from __future__ import annotations

import json
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tools.environment import ROOT

OURS, IMPORTS, SDK, ALL, MEMORY = "our code", "imports", "the SDK", "all", "MiB"
"""Keys of a report: seconds of processor time by owner and in all, and the most memory that was in use."""

_OURS = tuple(f"{ROOT / name}" for name in ("components/", "__main__.py"))
_SDK = "/site-packages/pulumi"
_IMPORT = "_find_and_load"
"""The function of importlib inside which every import happens; its local `name` is what is imported."""
_INTERVAL_SECONDS = 0.01
"""Often enough for tenths of a second; four times as often would itself be a thirtieth of a large program's time."""


@contextmanager
def recorded(report: Path) -> Iterator[None]:
    """Watch the program from here to the end of the block, and write the report. The SDK is imported before it."""
    met: Counter[str] = Counter()

    def look(number: int, frame: FrameType | None) -> None:
        met[owner(frame)] += 1

    before = time.process_time()
    signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL_SECONDS, _INTERVAL_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        total = time.process_time()
        # Ticks may be lost, so they tell the shares and the clock tells the sum.
        share = (total - before) / max(1, sum(met.values()))
        costs = {name: met[name] * share for name in (OURS, IMPORTS, SDK)}
        costs[IMPORTS] += before
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        report.write_text(json.dumps({**costs, ALL: total, MEMORY: memory}))


def owner(frame: FrameType | None) -> str:
    """Return whose code a frame runs: a library's work is its caller's, ours or the SDK's; an import is what it loads.

    The SDK's work is the SDK's, whoever asked for it.
    """
    in_sdk = False
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_code.co_name == _IMPORT:
            return OURS if str(frame.f_locals.get("name", "")).startswith("components") else IMPORTS
        if file.startswith(_OURS) and not in_sdk:
            return OURS
        in_sdk = in_sdk or _SDK in file
        frame = frame.f_back
    return SDK
