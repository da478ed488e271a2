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

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?\): (\d+)\b(.*)")
"""The start of the driver's message. It contains a whole PCI address and is therefore longer than the name of a process
(15 bytes), with which the kernel begins some messages, for example about a segmentation fault."""
_KERNEL_HEAD = re.compile(r"[0-7],(\d+),\d+,-")
_RECORD_BYTES = 8192


def load_xids() -> dict[str, Mapping[str, Any]]:
    """Return the fatal Xids by number, from xid.json."""
    codes: dict[str, Mapping[str, Any]] = json.loads((Path(__file__).parent / "xid.json").read_text())["codes"]
    return codes


def fatal_xid(line: str, codes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return a text such as "Xid 79, GPU has fallen off the bus" if the line reports a fatal Xid, else None.

    Only the start of the line is read, because users can add text to other messages, for example with mount options in
    a user namespace.
    """
    found = _XID.match(line)
    if found is None:
        return None
    row = codes.get(found[1])
    if row is None or not re.search(row.get("only", ""), found[2]):
        return None
    return f"Xid {found[1]}, {row['text']}"


def records(log: int, after: int = -1) -> Iterator[tuple[int, str]]:
    """Yield (sequence number, text) of the kernel's records that can be read from /dev/kmsg without waiting.

    Records of programs that write to /dev/kmsg are skipped: their facility, which is the priority without its lowest
    three bits, is never 0 (devkmsg_write in Linux, kernel/printk/printk.c; seen with Linux 6.18 on 2026-11-24). Records
    with the flag "c" are also skipped, because they continue a line, and a user may have chosen their text.
    """
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
        found = _KERNEL_HEAD.match(head)
        if found is not None and int(found[1]) > after:
            yield int(found[1]), text
