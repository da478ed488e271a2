"""The program on this computer that starts and stops a local cluster's machines for the head."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.platforms.local import power
from components.platforms.local.computer import available_mib
from components.platforms.local.machine import SHUT_DOWN_SECONDS, Machine
from components.platforms.local.paths import MachineFiles

PROGRAM = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
for number in range(3):
    os.dup2(os.open("/dev/null", os.O_RDWR), number)
open(sys.argv[2], "w").write(str(os.getpid()))
time.sleep(60)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[MachineFiles]:
    """A machine that is off. A Python process with a pidfile takes the place of QEMU."""
    files = MachineFiles(run=tmp_path, name="yard-gpu-0")
    files.folder.mkdir()
    command = [sys.executable, "-c", PROGRAM, "-pidfile", str(files.pidfile)]
    files.start_file.write_text(json.dumps({"command": command, "niceness": 3, "memory_mib": 1}))
    yield files
    Machine(run=tmp_path, name="yard-gpu-0").power_off()


def ask(machine: MachineFiles, *request: str) -> object:
    """Run the program as QEMU does: in another folder, and with the request on stdin."""
    command = [sys.executable, "-I", power.__file__, str(machine.run), "yard-head"]
    done = subprocess.run(
        command, input=" ".join(request) + "\n", capture_output=True, text=True, check=True, cwd="/", timeout=30
    )
    return json.loads(done.stdout)


def state(machine: MachineFiles) -> object:
    return ask(machine, "states", machine.name, "yard-head", "../other", "missing")


def started(machine: MachineFiles) -> None:
    assert ask(machine, "start", machine.name) == {}
    deadline = time.monotonic() + 10
    while state(machine) != {machine.name: "on"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_machine_is_started_once_and_stopped(machine: MachineFiles) -> None:
    assert state(machine) == {machine.name: "off"}
    started(machine)
    pid = int(machine.pidfile.read_text())
    assert ask(machine, "start", machine.name) == {}
    assert int(machine.pidfile.read_text()) == pid
    # The process has no monitor, so it is ended at once.
    assert ask(machine, "stop", machine.name) == {}
    assert state(machine) == {machine.name: "off"}


def test_a_guest_that_does_not_stop_is_ended_by_the_second_request(machine: MachineFiles) -> None:
    started(machine)
    machine.stop_file.write_text(machine.pidfile.read_text())
    assert state(machine) == {machine.name: "changing"}
    assert ask(machine, "stop", machine.name) == {}
    assert state(machine) == {machine.name: "changing"}
    late = time.time() - SHUT_DOWN_SECONDS - 1
    os.utime(machine.stop_file, (late, late))
    assert state(machine) == {machine.name: "on"}
    assert ask(machine, "stop", machine.name) == {}
    assert state(machine) == {machine.name: "off"}


@pytest.mark.parametrize(
    "request_", ["", "remove yard-gpu-0", "start yard-head", "stop ../other", "start", "start missing", "start a b"]
)
def test_other_requests_are_refused(machine: MachineFiles, request_: str) -> None:
    if request_ == "start":
        assert ask(machine, request_) == {}
    else:
        assert ask(machine, request_) == {"error": "unknown request or machine"}
    assert state(machine) == {machine.name: "off"}


def test_a_machine_that_does_not_fit_into_the_memory_is_refused(machine: MachineFiles) -> None:
    stored = json.loads(machine.start_file.read_text())
    machine.start_file.write_text(json.dumps(stored | {"memory_mib": 10**8}))
    answer = ask(machine, "start", machine.name)
    assert isinstance(answer, dict)
    assert answer["error"].startswith("it needs 100000740 MiB of memory, but the computer has only ")


def test_memory_that_a_booting_machine_has_not_used_yet_is_not_free(machine: MachineFiles) -> None:
    stored = json.loads(machine.start_file.read_text()) | {"memory_mib": available_mib() * 6 // 10}
    machine.start_file.write_text(json.dumps(stored))
    other = MachineFiles(run=machine.run, name="yard-gpu-1")
    other.folder.mkdir()
    other.start_file.write_text(json.dumps(stored | {"command": ["true"]}))
    started(machine)
    answer = ask(machine, "start", other.name)
    assert isinstance(answer, dict)
    assert "MiB of memory, but the computer has only " in answer.get("error", "")


def test_the_option_has_no_separator_of_qemu_in_its_paths() -> None:
    option = power.forward(Path("/srv/a,b c"))
    assert option.startswith(f"guestfwd=tcp:{power.ADDRESS}:{power.PORT}-cmd:")
    assert option.endswith(" '/srv/a,,b c'")
