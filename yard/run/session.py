"""`yard run`: an interactive session on a node, with forwarded ports."""

from __future__ import annotations

import secrets
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.errors import JobError, RemoteError
from yard.job.loader import check_job
from yard.job.placement import place
from yard.run.environments import ensure
from yard.run.schedulers import Session, scheduler_of
from yard.run.submit import environment_on
from yard.show import say_json, warn
from yard.stack.remote import Remote

_COMMAND = "yard run"
_SECONDS_BETWEEN_QUERIES = 2.0
_END = (signal.SIGTERM, signal.SIGHUP)
_SIGNALLED = 128
"""If a signal ends a process, the exit code in a shell is this value plus the number of the signal."""
_OWN_CONNECTION = ("-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes")
"""A shared connection would continue to forward the ports after the session has ended."""


def prepare_session(remote: Remote, options: Mapping[str, Any], command: str | None, *, terminal: bool) -> Session:
    """Return a session. `options` are keys of a job file: `nodes`, `gpus_per_node`, `group`, `time` or `environment`.

    `command` is a shell command, or None for a login shell. `terminal`: whether the session has a terminal. If the
    environment does not exist, it is built. Raises JobFileError or JobError if the cluster cannot start the session,
    and BuildError if the environment cannot be built.
    """
    if command is None and not terminal:
        raise JobError("a shell needs a terminal; run the command on a terminal, or add a command after `--`")
    # The name is unique, so that the session's job can be found.
    keys = {"name": f"run-{secrets.token_hex(3)}", "launcher": "srun", "run": "true", **options}
    job = check_job(_COMMAND, Path(), keys, {}, ())
    cluster = remote.stack.cluster
    placement = place(job, cluster)
    if environment := environment_on(job, placement):
        command = _activated(ensure(remote, environment), command)
    return scheduler_of(cluster.scheduler).session(remote, job, placement, command, terminal=terminal)


def _activated(folder: str, command: str | None) -> str:
    """Return a shell command that activates an environment and runs `command`, or a shell if it is None.

    A login shell sets PATH when it starts. Therefore, the environment is activated inside the login shell, which then
    executes a shell that is not a login shell.
    """
    activate = f"export VIRTUAL_ENV={shlex.quote(folder)} PATH={shlex.quote(folder)}/bin:$PATH"
    if command is None:
        return f"exec bash -lc {shlex.quote(f'{activate}; exec bash')}"
    return f"{activate}; {command}"


def session_argv(remote: Remote, session: Session, *, terminal: bool) -> list[str]:
    """Return the ssh command that starts the session."""
    return remote.argv(session.line, remote.host(session.host), *(["-t"] if terminal else []))


def forward_argv(remote: Remote, node: str, ports: Sequence[int]) -> list[str]:
    """Return the ssh command that forwards ports of this computer to the same ports of a node's loopback address."""
    forwards = [word for port in ports for word in ("-L", f"127.0.0.1:{port}:127.0.0.1:{port}")]
    return remote.argv(None, node, "-N", *_OWN_CONNECTION, *forwards)


def run_session(remote: Remote, session: Session, ports: Sequence[int], *, terminal: bool) -> int:
    """Run the session. Returns its exit code."""
    warn(f"yard: editors: add `Include {remote.stack.ssh_config}` to ~/.ssh/config, then connect to a node by its name")
    for port in ports:
        warn(f"yard: http://127.0.0.1:{port} will be port {port} of the session's node")
    # `ssh` does not print why a tunnel failed, but `run` does. `run` also opens the shared connection.
    remote.run("true")
    ended = threading.Event()
    forwarding = _Forwarding(remote, session, ports, ended)
    if ports:
        forwarding.start()
    try:
        code = _wait_for_ssh(session_argv(remote, session, terminal=terminal))
    finally:
        ended.set()
        if ports:
            forwarding.join()
    # After Ctrl-C, this line is not executed, so interrupted forwarding causes no warning.
    if forwarding.problem:
        warn(f"yard: the ports were not forwarded: {forwarding.problem}")
    return code


def _wait_for_ssh(argv: Sequence[str]) -> int:
    """Run ssh and return its exit code. SIGTERM and SIGHUP also end ssh, so that the session releases its nodes."""
    with subprocess.Popen(argv) as process:
        before = {number: signal.signal(number, lambda *_: process.terminate()) for number in _END}
        try:
            code = process.wait()
        finally:
            process.terminate()
            for number, handler in before.items():
                signal.signal(number, handler)
    return code if code >= 0 else _SIGNALLED - code


def show_session(remote: Remote, session: Session, ports: Sequence[int], *, terminal: bool) -> None:
    """Print the ssh commands as JSON. The command that forwards the ports is null until the node is known."""
    forward = forward_argv(remote, session.node, ports) if ports and session.node else None
    say_json({"argv": session_argv(remote, session, terminal=terminal), "forward": forward})


class _Forwarding(threading.Thread):
    """Forwards ports to the session's node from the moment the node is known until `ended` is set.

    It prints nothing, because the session uses the terminal. `problem` is the reason for a failure, or empty.
    """

    def __init__(self, remote: Remote, session: Session, ports: Sequence[int], ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._remote, self._session, self._ports, self._ended = remote, session, ports, ended
        self.problem = ""

    def run(self) -> None:
        try:
            node = self._wait_for_node()
        except RemoteError as error:
            self.problem = str(error)
            return
        if node is None:
            return
        process = subprocess.Popen(
            forward_argv(self._remote, node, self._ports),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        while process.poll() is None and not self._ended.wait(0.2):
            pass
        failed = process.poll() is not None
        process.terminate()
        _, printed = process.communicate()
        self.problem = printed.strip() or "ssh ended" if failed else ""

    def _wait_for_node(self) -> str | None:
        """Return the session's node, or None if the session ended before it had one."""
        scheduler = scheduler_of(self._remote.stack.cluster.scheduler)
        while not self._ended.is_set():
            if node := scheduler.session_node(self._remote, self._session):
                return node
            self._ended.wait(_SECONDS_BETWEEN_QUERIES)
        return None
