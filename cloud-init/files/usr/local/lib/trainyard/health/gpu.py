"""Checks of GPUs and their driver. One call of nvidia-smi per round provides all values except NVLinks and Xids.

The queries were tested on two H200s with driver 580.159.04 on 2026-11-22. This driver also accepts the older name
`clocks_throttle_reasons.active`. Xids come from the kernel log: a record of /dev/kmsg is
"priority,sequence,microseconds,flags;text" (Linux, Documentation/ABI/testing/dev-kmsg, read 2026-11-22).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from health.node import Check, Node, Outcome, Ran, failed, passed, unknown

_XID = re.compile(
    r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F]{0,4}([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?\): (\d+)\b(.*)"
)
"""The start of the driver's message. Some kernel messages, for example about a segmentation fault, begin with a process
name, which a user can choose. A process name has at most 15 bytes, so it cannot contain a whole PCI address."""
_KERNEL_HEAD = re.compile(r"[0-7],(\d+),\d+,-")
_RECORD_BYTES = 8192
_FIELDS = (
    "index",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.pending",
    "remapped_rows.failure",
    "clocks_throttle_reasons.active",
    "pcie.link.width.current",
    "pcie.link.width.max",
)
_QUERY = ["nvidia-smi", "--format=csv,noheader,nounits", f"--query-gpu={','.join(_FIELDS)}"]
_MEMO_SECONDS = 10
_MISMATCH = "version mismatch"
_YES = frozenset({"yes", "1"})
_LINK = re.compile(r"^\s*Link (\d+): (.+)$")
_GPU = re.compile(r"^GPU (\d+):")


def load_xids() -> dict[str, Mapping[str, Any]]:
    """Return a mapping from fatal Xid to its entry in xid.json."""
    codes: dict[str, Mapping[str, Any]] = json.loads((Path(__file__).parent / "xid.json").read_text())["codes"]
    return codes


def fatal_xid(line: str, codes: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return a text such as "Xid 79, GPU has fallen off the bus", or None if the line reports no fatal Xid.

    Only the start of the line counts, because users can put text into other messages, for example with mount options in
    a user namespace.
    """
    found = _XID.match(line)
    if found is None:
        return None
    row = codes.get(found[2])
    if row is None or not re.search(row.get("only", ""), found[3]):
        return None
    return f"Xid {found[2]}, {row['text']}"


def xid_in(line: str) -> tuple[str, str] | None:
    """Return the GPU's PCI address, such as "0000:3b:00", and the code of the Xid that a line reports, or None."""
    found = _XID.match(line)
    return None if found is None else (found[1].lower(), found[2])


def records(log: int, after: int = -1) -> Iterator[tuple[int, str]]:
    """Yield the sequence number and text of each kernel record that can be read from /dev/kmsg without waiting.

    Records that a program wrote to /dev/kmsg are skipped. The facility of such a record (its priority without the
    lowest three bits) is never 0 (devkmsg_write in Linux, kernel/printk/printk.c; seen with Linux 6.18 on 2026-11-24).
    Records with the flag "c" are skipped too, because they continue a line whose text a user may have chosen.
    """
    while True:
        try:
            record = os.read(log, _RECORD_BYTES).decode(errors="replace")
        except BlockingIOError:
            return
        except BrokenPipeError:
            continue  # Records were overwritten. The next read returns the oldest record.
        if not record:
            return
        head, _, text = record.partition(";")
        found = _KERNEL_HEAD.match(head)
        if found is not None and int(found[1]) > after:
            yield int(found[1]), text


def gpu_count(node: Node, check: Check) -> Outcome:
    """Check that all GPUs of the machine type are present."""
    expected = node.count("TRAINYARD_GPUS")
    if node.variable("TRAINYARD_GPU_TYPE") == "fake":
        found = len(node.glob(f"{node.variable('TRAINYARD_GPU_DEVICE')}[0-9]*"))
    else:
        rows = _rows(node, check.timeout)
        if rows is None:
            return unknown("nvidia-smi does not work")
        found = len(rows)
    return passed() if found == expected else failed(f"{found} of {expected} GPUs work")


def nvidia_smi(node: Node, check: Check) -> Outcome:
    """Check that nvidia-smi exists, ends in time and reports no error."""
    ran = _query(node, check.timeout)
    if ran.code is None:
        return failed(f"nvidia-smi: {ran.problem}")
    if ran.code == 0 or _MISMATCH in ran.output:
        return passed()
    return failed(f"nvidia-smi ends with exit code {ran.code}")


def gpu_driver(node: Node, check: Check) -> Outcome:
    """Check that the driver's libraries and the loaded kernel module have the same version."""
    ran = _query(node, check.timeout)
    if _MISMATCH in ran.output:
        return failed("driver and libraries have different versions")
    return passed() if ran.code == 0 else unknown("nvidia-smi does not work")


def gpu_memory(node: Node, check: Check) -> Outcome:
    """Check that no GPU has had an uncorrectable memory error since the driver was loaded."""
    return _each(
        node,
        check,
        lambda row: _number(row["ecc.errors.uncorrected.volatile.total"]) > 0,
        "uncorrectable memory errors",
    )


def gpu_row_remap(node: Node, check: Check) -> Outcome:
    """Check that no GPU has a pending or failed remapping of memory rows."""
    names = ("remapped_rows.pending", "remapped_rows.failure")
    return _each(node, check, lambda row: any(row[name].lower() in _YES for name in names), "row remapping")


def gpu_throttle(node: Node, check: Check) -> Outcome:
    """Check that no GPU is slowed down by its temperature or by the machine's power supply."""
    mask = int(check.limits["mask"], 16)
    return _each(node, check, lambda row: _number(row["clocks_throttle_reasons.active"]) & mask, "hardware slowdown")


def gpu_pcie(node: Node, check: Check) -> Outcome:
    """Check that each GPU uses all its PCIe lanes. The link speed is ignored, because idle GPUs lower it."""

    def has_too_few(row: dict[str, str]) -> bool:
        return 0 < _number(row["pcie.link.width.current"]) < _number(row["pcie.link.width.max"])

    return _each(node, check, has_too_few, "missing PCIe lanes")


def gpu_nvlink(node: Node, check: Check) -> Outcome:
    """Check that no NVLink has gone down, and that all links are up if the machine has NVSwitch."""
    ran = node.run(["nvidia-smi", "nvlink", "--status"], check.timeout)
    if ran.code != 0:
        return unknown("nvidia-smi shows no state of NVLink")
    best: dict[str, int] = node.baseline.setdefault("nvlink", {})
    down = []
    for gpu, states in _links(ran.output).items():
        up = sum(states)
        best[gpu] = len(states) if "nvswitch" in node.labels() else max(up, best.get(gpu, 0))
        if up < best[gpu]:
            down.append(gpu)
    return failed(f"NVLink is down on GPU {', '.join(down)}") if down else passed()


def gpu_xid(node: Node, check: Check) -> Outcome:
    """Check that, since the boot, the kernel has logged no Xid that requires a reset or a reboot."""
    text = node.events.get(check.id)
    return passed() if text is None else failed(text)


def _links(output: str) -> dict[str, list[bool]]:
    """Parse `nvidia-smi nvlink --status`. Return a mapping from GPU to a list that tells whether each link is up."""
    found: dict[str, list[bool]] = {}
    gpu = ""
    for line in output.splitlines():
        if header := _GPU.match(line):
            gpu = header[1]
        elif link := _LINK.match(line):
            found.setdefault(gpu, []).append("inactive" not in link[2])
    return found


def _query(node: Node, timeout: float) -> Ran:
    made, ran = node.memo.get("nvidia-smi", (0.0, None))
    if ran is None or time.monotonic() - made > _MEMO_SECONDS:
        ran = node.run(_QUERY, timeout)
        node.memo["nvidia-smi"] = time.monotonic(), ran
    result: Ran = ran
    return result


def _rows(node: Node, timeout: float) -> list[dict[str, str]] | None:
    """Return a mapping from field to value for each GPU, or None if nvidia-smi does not work."""
    ran = _query(node, timeout)
    if ran.code != 0:
        return None
    lines = ([field.strip() for field in line.split(",")] for line in ran.output.splitlines())
    return [dict(zip(_FIELDS, line, strict=True)) for line in lines if len(line) == len(_FIELDS) and line[0].isdigit()]


def _each(node: Node, check: Check, is_bad: Callable[[dict[str, str]], object], text: str) -> Outcome:
    rows = _rows(node, check.timeout)
    if rows is None:
        return unknown("nvidia-smi does not work")
    bad = [row["index"] for row in rows if is_bad(row)]
    return failed(f"{text} on GPU {', '.join(bad)}") if bad else passed()


def _number(text: str) -> int:
    """Return the number in a field, or 0 if it contains "[N/A]" because the GPU does not support it."""
    try:
        return int(text, 0)
    except ValueError:
        return 0
