"""Runs the site's program that turns existing hosts on and off (`power_command` in the stack file).

trainyard-repair is confined, so it can neither run the site's program nor read its credentials. It connects to
trainyard-power.socket, which only root can open, and systemd starts trainyard-power for each connection. A request is
one line: "states", "start" or "stop", and names of nodes. The answer is one line of JSON: the states that are known,
{} before the program runs, or {"error": TEXT}. The other problems are in the journal.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from repair.channels import AT_ONCE, STATUS_SECONDS
from repair.power import OFF, ON, PowerError
from repair.service import STATE, Site, read_site

Run = Callable[[Sequence[str]], str]
_VERBS = {"states": "status", "start": "on", "stop": "off"}
_LONGEST = 1 << 20
"""The longest request in characters. trainyard-repair may have been taken over, and this program is not confined."""
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
"""Write permission for others than the owner. A POSIX ACL that permits writing also sets the bit of the group."""
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def answer(request: Sequence[str], site: Site, run: Run, send: Callable[[str], None]) -> None:
    """Carry out a request, and send the answer. `run` runs the site's program and returns what it prints.

    Only nodes of elastic groups are turned on or off. An order is answered before the program runs, because
    trainyard-repair does not wait for it: it looks up the state, and repeats an order that had no effect.
    """
    verb, *listed = request or [""]
    names = list(dict.fromkeys(listed))
    groups = [group for group in site.groups if group.elastic is not None]
    addresses = {name: address for group in groups for name, address in group.nodes.items()}
    command = shlex.split(site.channel.get("command", ""))
    problem = "no power_command is configured" if not command else unsafe(Path(command[0]))
    if verb not in _VERBS or not names or not addresses.keys() >= set(names):
        problem = "unknown request or node"
    if problem:
        send(json.dumps({"error": problem}))
        return
    if verb != "states":
        send("{}")
    calls = [[*command, _VERBS[verb], name, addresses[name]] for name in names]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outputs = dict(zip(names, pool.map(lambda call: _try(run, call), calls)))  # noqa: B905  (Python 3.10)
    if verb == "states":
        send(json.dumps({name: state for name, state in outputs.items() if state is not None}))


def _try(run: Run, call: Sequence[str]) -> str | None:
    """Return the state that the program prints, or None. Problems are written to the journal."""
    verb = call[-3]
    try:
        output = run(call).strip()
        if verb != "status" or output in {ON, OFF}:
            return output
        raise PowerError(f"printed {output[:40]!r} instead of on or off")
    except PowerError as error:
        sys.stderr.write(f"{call[0]} {' '.join(call[-3:])}: {error}\n")
        return None


def unsafe(program: Path) -> str | None:
    """Return why root must not run the program, or None: others than root could change it, or it does not exist."""
    for path in [*reversed(program.parents), program]:
        try:
            found = _facts(path)
        except OSError as error:
            return f"power_command {path}: {error.strerror}. Fix: install the program on the head"
        is_expected = stat.S_ISREG if path == program else stat.S_ISDIR
        if not is_expected(found.st_mode):
            return f"power_command {path} is a link or has the wrong type. Fix: write a path without links"
        if found.st_uid != 0 or found.st_mode & _OTHERS:
            fix = f"sudo chown root {path} && sudo chmod go-w {path}"
            return f"power_command {path} can be changed by others than root. Fix: {fix}"
    return None


def _facts(path: Path) -> os.stat_result:
    return path.lstat()


def run_program(call: Sequence[str], seconds: float = STATUS_SECONDS) -> str:
    """Run the program, and return what it prints. What it prints on stderr goes to the journal.

    Raises PowerError if the program fails. If it does not end in time, it is killed with its processes.
    """
    try:
        process = subprocess.Popen(
            call,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            errors="replace",
            cwd="/",
            env=_ENVIRONMENT,
            start_new_session=True,
        )
    except OSError as error:
        raise PowerError(str(error)) from error
    with process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise PowerError(f"did not end within {seconds:.0f} s") from None
    if process.returncode:
        raise PowerError(f"exit code {process.returncode}")
    return output


def _send(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Answer the request on stdin, which is the connection."""
    site = read_site((STATE / "handover" / "repair.json").read_text())
    answer(sys.stdin.readline(_LONGEST).split(), site, run_program, _send)
