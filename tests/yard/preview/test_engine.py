"""`yard preview --offline` with the real engine: results, remaining processes and files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SECONDS = 600.0
"""The limit is much longer than needed, because the machine can be busy."""

pytestmark = pytest.mark.engine


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in the background, and terminate it when the `with` block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "yard", "preview", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def processes_of(folder: Path) -> Iterator[int]:
    """Yield the ids of all processes that use the folder as TMPDIR."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def test_a_preview_of_two_stacks_leaves_no_files(tmp_path: Path) -> None:
    before = set((ROOT / ".trainyard").rglob("*local*"))
    with started(tmp_path, "local", "gcp-a2", "--offline", "--json", "--against", "HEAD") as process:
        out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err
    document = json.loads(out)
    local, gcp = document["stacks"]
    assert (local["stack"], gcp["stack"]) == ("local", "gcp-a2")
    assert local["resources"]["by_type"]["pulumi-python:dynamic/local:Vm"] == 3
    assert gcp["resources"]["by_type"]["gcp:compute/instance:Instance"] == 3
    assert gcp["resources"]["by_operation"] == {"create": len(gcp["resources"]["changes"])}
    assert list(tmp_path.iterdir()) == []
    assert list(processes_of(tmp_path)) == []
    assert set((ROOT / ".trainyard").rglob("*local*")) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_processes_and_files(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "local", "azure-a100", "--offline") as process:
        deadline = time.monotonic() + SECONDS
        # Sends the interrupt after yard, the engine, its language host and the program have started.
        while len(list(processes_of(tmp_path))) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert out == ""
    assert list(processes_of(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
