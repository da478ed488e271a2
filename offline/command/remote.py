"""Run a command on another machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack

from offline.command.capture import Capture, Pump
from offline.command.commands import Run
from offline.command.connection import connection
from offline.command.link import Link, Links
from offline.command.mux import MuxSession
from offline.resources import Operation, ResourceError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# `read` takes exactly one line, byte by byte, so that the command finds its own input whole. In this way the values
# stand in no argument list, neither here nor there, and no setting of sshd is in the way.
_READ_ENVIRONMENT = 'IFS= read -r TRAINYARD_ENV && eval "$(printf %b "$TRAINYARD_ENV")" && unset TRAINYARD_ENV\n'


class RemoteRunner:
    """Runs with the remote user's login shell, over a shared connection."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def run(self, operation: Operation, run: Run, capture: Capture) -> str:
        """See Runner."""
        link = self._links.to(connection(run.properties.get("connection")))
        command, data = _with_environment(run)
        with link.sessions, ExitStack() as stack:
            session, pump = _start(link, operation, command, data, capture)
            stack.callback(session.close)
            stack.callback(pump.close)

            def stop() -> None:
                link.end_commands()
                session.end()

            with operation.stop.calling(stop):
                pump.run(operation.seconds)
                status = session.exit_status()
        if status != 0:
            operation.stop.wait(0)
        if status is None:
            return "ended without an exit status (killed by a signal, or the connection was lost)"
        return f"exit status {status}" if status else ""


def _start(link: Link, operation: Operation, command: str, data: bytes, capture: Capture) -> tuple[MuxSession, Pump]:
    """Start the command with three pipes; the ends that are not ours are closed again."""
    stdin_theirs, stdin = os.pipe() if data else (os.open(os.devnull, os.O_RDONLY), None)
    stdout, stdout_theirs = os.pipe()
    stderr, stderr_theirs = os.pipe()
    theirs = (stdin_theirs, stdout_theirs, stderr_theirs)
    try:
        session = link.open(operation, command, theirs)
    except BaseException:
        for descriptor in (stdin, stdout, stderr):
            if descriptor is not None:
                os.close(descriptor)
        raise
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    return session, Pump(capture, stdout=stdout, stderr=stderr, stdin=stdin, data=data)


def _with_environment(run: Run) -> tuple[str, bytes]:
    """Return the command as the remote shell gets it, and its standard input."""
    if not run.environment:
        return run.text, run.stdin.encode()
    script = _exports(run.environment).replace("\\", "\\\\").replace("\n", "\\n")
    return _READ_ENVIRONMENT + run.text, f"{script}\n{run.stdin}".encode()


def _exports(environment: Mapping[str, str]) -> str:
    for name in environment:
        if not _NAME.fullmatch(name):
            raise ResourceError(f"environment.{name}: a name holds letters, digits and _ only. Fix: rename it")
    quoted = {name: value.replace("'", "'\\''") for name, value in environment.items()}
    return "\n".join(f"export {name}='{value}'" for name, value in quoted.items())
