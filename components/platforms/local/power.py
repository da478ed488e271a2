"""Starts and stops a local cluster's machines for the head: power.py RUN, with a request on stdin.

QEMU starts this program for each connection that the head's machine opens to ADDRESS. Only the head's machine has this
address, so the connection identifies the cluster. A request is one line: "states", "start" or "stop", and names of
machines. The answer is one line of JSON: the machines' states, {} or {"error": TEXT}.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

if __name__ == "__main__":
    # QEMU starts the program in another folder, and with another checkout's environment.
    sys.path.insert(0, str(Path(__file__).parents[3]))

from components.platforms.local.computer import available_mib, resident_mib
from components.platforms.local.machine import OVERHEAD_MIB, SHUT_DOWN_SECONDS, Machine, begin_shutdown
from trainyard.errors import PlatformError
from trainyard.outputs import LOCAL_WAKE

ADDRESS, PORT = "10.0.2.100", 80
"""An address in QEMU's user-mode network."""


def forward(run: Path) -> str:
    """Return the option of QEMU's user-mode network that starts this program for the head's connections."""
    command = shlex.join([sys.executable, "-I", __file__, str(run)])
    return f"guestfwd=tcp:{ADDRESS}:{PORT}-cmd:{command}".replace(",", ",,")


def wake_command(run: Path) -> Sequence[str]:
    """Return the output `head.wake` of a cluster whose head can be off (yard/stack/sleep.py)."""
    return LOCAL_WAKE, str(run)


def answer(request: Sequence[str], run: Path) -> Mapping[str, str]:
    """Carry out a request. Machines that do not exist have no state."""
    verb, *names = request or [""]
    machines = [Machine(run=run, name=name) for name in names if "/" not in name]
    machines = [machine for machine in machines if machine.start_file.exists()]
    if verb == "states":
        return {machine.name: _state(machine) for machine in machines}
    if verb not in {"start", "stop"} or len(machines) != len(names):
        return {"error": "unknown request or machine"}
    try:
        for machine in machines:
            if verb == "start":
                start(machine)
            else:
                _stop(machine)
    except PlatformError as error:
        return {"error": str(error)}
    return {}


def _state(machine: Machine) -> str:
    pid = machine.pid
    if pid is None:
        return "off"
    age = _age_of_stop(machine, pid)
    return "changing" if age is not None and age < SHUT_DOWN_SECONDS else "on"


def start(machine: Machine) -> None:
    """Start a machine that is off. Raises PlatformError if the computer has not enough memory or QEMU fails."""
    if machine.pid is not None:
        return
    stored = json.loads(machine.start_file.read_text())
    needed, free = stored["memory_mib"] + OVERHEAD_MIB, available_mib() - _unused_mib(machine.run)
    if needed > free:
        raise PlatformError(f"it needs {needed} MiB of memory, but the computer has only {max(0, free)} MiB free")
    machine.launch(stored["command"], stored["niceness"])


def _unused_mib(run: Path) -> int:
    """Return the memory in MiB that the run's machines will use in addition, for example because they are booting."""
    found = 0
    for file in run.glob("*/start.json"):
        pid = Machine(run=run, name=file.parent.name).pid
        if pid is not None:
            found += max(0, json.loads(file.read_text())["memory_mib"] + OVERHEAD_MIB - resident_mib(pid))
    return found


def _stop(machine: Machine) -> None:
    """Begin to shut the machine down. If it does not stop in time, a later request ends its process."""
    pid = machine.pid
    if pid is None:
        return
    age = _age_of_stop(machine, pid)
    if age is None:
        machine.stop_file.write_text(str(pid))
        if begin_shutdown(machine.monitor):
            return
    elif age < SHUT_DOWN_SECONDS:
        return
    machine.power_off()


def _age_of_stop(machine: Machine, pid: int) -> float | None:
    """Return how many seconds ago the process was asked to stop, or None if it was not."""
    try:
        return time.time() - machine.stop_file.stat().st_mtime if machine.stop_file.read_text() == str(pid) else None
    except OSError:
        return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(sys.stdin.readline().split(), Path(sys.argv[1]))) + "\n")
