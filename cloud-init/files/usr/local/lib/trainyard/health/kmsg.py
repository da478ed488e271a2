"""Reads the kernel log and finds fatal Xids.

Format of a record of /dev/kmsg: "priority,sequence,microseconds,flags;text" (Linux, Documentation/ABI/testing/dev-kmsg,
read 2026-11-22).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)\b(.*)")
_RECORD_BYTES = 8192


def load_xids() -> dict[str, Mapping[str, Any]]:
    """Return the fatal Xids by number, from xid.json."""
    codes: dict[str, Mapping[str, Any]] = json.loads((Path(__file__).parent / "xid.json").read_text())["codes"]
    return codes


def fatal_xid(line: str, codes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return a text such as "Xid 79, GPU has fallen off the bus" if the line reports a fatal Xid, else None."""
    found = _XID.search(line)
    if found is None:
        return None
    row = codes.get(found[2])
    if row is None or not re.search(row.get("only", ""), found[3]):
        return None
    return f"Xid {found[2]}, {row['text']}"


def records(log: int, after: int = -1) -> Iterator[tuple[int, str]]:
    """Yield (sequence number, text) of the records that can be read from /dev/kmsg without waiting."""
    while True:
        try:
            record = os.read(log, _RECORD_BYTES).decode(errors="replace")
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue  # Records were overwritten, and the next read returns the oldest record.
        if not record:
            return
        head, _, text = record.partition(";")
        number = head.split(",")[1] if head.count(",") else ""
        if number.isdigit() and int(number) > after:
            yield int(number), text
