"""`yard preview --offline` with the real engine, its remaining processes and files, and the parser for its output."""

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

from yard.preview.engine import Step, read_answer

ROOT = Path(__file__).parents[3]
SECONDS = 600.0
"""The limit is much longer than needed, because the machine can be busy."""


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


@pytest.mark.engine
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


@pytest.mark.engine
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


OWN = "stacks/Pulumi.x.yaml:"
PARENT = "urn:pulumi:x::trainyard::trainyard:index:Cluster"


def answer(*steps: tuple[str, str], messages: tuple[tuple[str, str], ...] = ()) -> str:
    return json.dumps(
        {
            "steps": [
                {"op": op, "urn": f"{PARENT}${kind}", "newState": {"inputs": {"key": "private"}}} for op, kind in steps
            ],
            "diagnostics": [{"severity": severity, "message": message} for severity, message in messages],
        }
    )


def test_only_operations_types_and_names_are_kept() -> None:
    kind = "gcp:compute/instance:Instance"
    found = read_answer(
        0, answer(("create", f"{kind}::a"), ("replace", f"{kind}::b::c"), ("same", "t:i:T::d")), "", OWN
    )
    assert found.changes == (Step(op="create", type=kind, name="a"), Step(op="replace", type=kind, name="b::c"))
    assert found.by_operation == {"create": 1, "replace": 1, "same": 1}
    assert found.by_type == {kind: 2, "t:i:T": 1}
    assert found.errors == ()
    assert "private" not in repr(found)


FALSE_ALARM = "error: Detected that /plugins/pulumi-resource-command exited prematurely. \n  This is *always* a bug"
DIED = (("info#err", "Traceback: no module\n"), ("error", "error: the program exited"), ("info", "all is well"))


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "errors"),
    [
        (255, answer(messages=(("error", "error: no quota"),)), "", ["no quota"]),
        (255, answer(messages=DIED), "", ["the program exited", "Traceback: no module"]),
        (255, answer(), "warning: a\nerror: the passphrase is wrong\n", ["the passphrase is wrong"]),
        (-9, "", "", ["pulumi ended with exit code -9"]),
        (0, "not JSON", "", ["not JSON"]),
        (0, answer(messages=(("error", FALSE_ALARM),)), "", []),
        (255, answer(messages=(("error", FALSE_ALARM),)), "", [FALSE_ALARM.removeprefix("error: ")]),
    ],
)
def test_errors_of_engine_and_program_are_reported(code: int, stdout: str, stderr: str, errors: list[str]) -> None:
    assert list(read_answer(code, stdout, stderr, OWN).errors) == errors


def test_messages_of_this_project_are_omitted() -> None:
    messages = (
        ("warning", f"{OWN}cluster: x"),
        ("warning", "warning: offline: simulated"),
        ("warning", "old plugin\n"),
    )
    assert read_answer(0, answer(messages=messages), "", OWN).warnings == ("old plugin",)
