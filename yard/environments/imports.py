"""The files that an import of PyTorch reads, which a node reads in parallel before Python reads them one by one.

`import torch` opens about 1,900 files one after another. It also maps 65 libraries of 3.1 GB, but reads only 0.5 GB
(PyTorch 2.11 with CUDA 13.0, measured on an H100 machine, 2026-11-28). Over NFS, each of these files needs at least
three round trips, and each 128 KiB of a library needs one, because this is the kernel's default read-ahead for NFS
(torvalds/linux at c128e575514c, read 2026-11-28). A larger read-ahead would not help: with 1 MiB, the import read 1.5
times as much, and with 15 MiB 2.7 times as much (same machine).

build.py copies this program into each environment and runs `imports.py record ENVIRONMENT [BASE]`. Jobs run
`imports.py read ENVIRONMENT` once on each node. The program needs only Python's standard library.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

LIST = "imports.json"
"""An environment's list of files: absolute paths with ranges, which consist of an offset and a size in bytes."""
_THREADS = 16
_CHUNK = 1 << 20
_SMALL = 1 << 20
"""Files up to this size in bytes are read whole."""
_GAP = 1 << 17
"""Ranges with a smaller gap in bytes are joined, because the kernel's read-ahead reads the gap."""
_PRESENT = 3 << 62
"""The bits of a page in /proc/self/pagemap that are set if the page is in memory or in swap (proc_pid_pagemap(5))."""


def record(environment: Path, base: Path | None = None) -> None:
    """Write an environment's list, to which the list of `base` is added, whose packages the environment also uses.

    PyTorch is imported only if the environment itself contains it. If its import fails, the list contains no files of
    the environment.
    """
    found: dict[str, list[list[int]]] = {}
    if any(environment.glob("lib/python*/site-packages/torch")):
        command = [str(environment / "bin" / "python3"), __file__, "list"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        found = {} if done.returncode else json.loads(done.stdout.splitlines()[-1])
    entries = [[name, ranges] for name, ranges in sorted(found.items()) if name.startswith(f"{environment}/")]
    if base is not None and (base / LIST).exists():
        entries += json.loads((base / LIST).read_text())
    new = environment / f".{LIST}"
    new.write_text(json.dumps(entries) + "\n")
    new.replace(environment / LIST)


def imported() -> dict[str, list[list[int]]]:
    """Import PyTorch, and return the ranges of each file that the import read."""
    names: set[str] = set()

    def note(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(values[0], str):
            names.add(values[0])

    sys.addaudithook(note)
    import torch  # noqa: F401, PLC0415  (the import is measured)

    ranges = {name: [[0, os.path.getsize(name)]] for name in sorted(names) if os.path.isfile(name)}
    return {**ranges, **_mapped()}


def read(environment: Path) -> None:
    """Read the files in an environment's list into the page cache. A file that cannot be read is skipped."""
    parts = [
        (name, begin, min(_CHUNK, offset + size - begin))
        for name, ranges in json.loads((environment / LIST).read_text())
        for offset, size in ranges
        for begin in range(offset, offset + size, _CHUNK)
    ]
    with ThreadPoolExecutor(_THREADS) as threads:
        list(threads.map(_read_part, parts))


def _read_part(part: tuple[str, int, int]) -> None:
    path, offset, size = part
    with suppress(OSError), open(path, "rb", buffering=0) as opened:
        os.pread(opened.fileno(), size, offset)


def _mapped() -> dict[str, list[list[int]]]:
    """Return the ranges of mapped files whose pages this process has used."""
    found: dict[str, list[list[int]]] = {}
    with open("/proc/self/maps") as maps, open("/proc/self/pagemap", "rb", buffering=0) as pages:
        for line in maps:
            # A line of an anonymous mapping ends with the inode.
            addresses, _, start, *_, name = line.rstrip("\n").split(maxsplit=5)
            if not (name.startswith("/") and os.path.isfile(name)):
                continue
            begin, end = (int(word, 16) for word in addresses.split("-"))
            states = array(
                "Q", os.pread(pages.fileno(), (end - begin) // mmap.PAGESIZE * 8, begin // mmap.PAGESIZE * 8)
            )
            ranges = found.setdefault(name, [])
            for index, state in enumerate(states):
                if state & _PRESENT:
                    _add(ranges, int(start, 16) + index * mmap.PAGESIZE)
    for name, ranges in found.items():
        size = os.path.getsize(name)
        found[name] = [[0, size]] if size <= _SMALL else ranges
    return found


def _add(ranges: list[list[int]], offset: int) -> None:
    """Add a page to the ranges of a file, which are in the order of the file's mappings."""
    if ranges and 0 <= offset - sum(ranges[-1]) <= _GAP:
        ranges[-1][1] = offset + mmap.PAGESIZE - ranges[-1][0]
    else:
        ranges.append([offset, mmap.PAGESIZE])


if __name__ == "__main__":
    # The folder of this program is not a folder of modules.
    sys.path.pop(0)
    if sys.argv[1] == "list":
        sys.stdout.write(json.dumps(imported()) + "\n")
    else:
        {"record": record, "read": read}[sys.argv[1]](*map(Path, sys.argv[2:]))
