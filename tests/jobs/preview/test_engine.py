"""`yard preview --offline` with the real engine: what it answers, and that it leaves no process and no file."""

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
"""Much more than it takes: a machine may be busy with others."""

pytestmark = pytest.mark.engine


@contextmanager
def started(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command in the background, and end it with the block whatever happens there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "jobs", "preview", *words],
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
    """Every process that was started with that folder for its temporary files."""
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"TMPDIR={folder}\0".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def test_two_stacks_one_answer_and_nothing_left(tmp_path: Path) -> None:
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
def test_an_interrupt_leaves_no_process_and_no_file(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "local", "azure-a100", "--offline") as process:
        deadline = time.monotonic() + SECONDS
        # The engine, its language host and the program: interrupt when all of that is up.
        while len(list(processes_of(tmp_path))) < 4 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in err
    assert out == ""
    assert list(processes_of(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
