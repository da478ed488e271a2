"""Runs an interactive session on a node, with forwarded ports, for `yard run`."""

from __future__ import annotations

import secrets
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
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

_SECONDS_BETWEEN_QUERIES = 2.0
OWN_CONNECTION = ("-o", "ControlPath=none", "-o", "ExitOnForwardFailure=yes")
"""Options for forwarding ports. A shared connection would still forward the ports after the session has ended."""


def prepare_session(remote: Remote, options: Mapping[str, Any], command: str | None, *, terminal: bool) -> Session:
    """Return a session that runs a shell command, or a login shell if `command` is None.

    `options` are keys of a job file: `nodes`, `gpus_per_node`, `group`, `time`, `environment` or `with`. If the
    environment does not exist, it is built. Raises JobFileError or JobError if the cluster cannot start the session,
    and BuildError if the environment cannot be built.
    """
    if command is None and not terminal:
        raise JobError("a shell needs a terminal; run the command on a terminal, or add a command after `--`")
    # The session's job is found by its name, which must therefore be unique.
    keys = {"name": f"run-{secrets.token_hex(3)}", "launcher": "srun", "run": "true", **options}
    job = check_job("yard run", Path(), keys, {}, ())
    placement = place(job, remote.stack.cluster)
    if folder := ensure(remote, environment_on(job, placement), job.packages, job.file):
        command = _activated(folder, command)
    return scheduler_of(placement.scheduler).session(remote, job, placement, command, terminal=terminal)


def _activated(folder: str, command: str | None) -> str:
    """Return a shell command that activates an environment and runs `command`, or a shell if `command` is None."""
    activate = f"export VIRTUAL_ENV={shlex.quote(folder)} PATH={shlex.quote(folder)}/bin:$PATH"
    if command is None:
        # A login shell would replace PATH when it starts, so the last shell is not a login shell.
        return f"exec bash -lc {shlex.quote(f'{activate}; exec bash')}"
    return f"{activate}; {command}"


def session_argv(remote: Remote, session: Session, *, terminal: bool) -> list[str]:
    """Return the ssh command that starts the session."""
    return remote.argv(session.line, remote.host(session.host), *(["-t"] if terminal else []))


def forward_argv(remote: Remote, node: str, ports: Sequence[int]) -> list[str]:
    """Return the ssh command that forwards this computer's ports to the same ports on a node's loopback address."""
    forwards = [word for port in ports for word in ("-L", f"127.0.0.1:{port}:127.0.0.1:{port}")]
    return remote.argv(None, node, "-N", *OWN_CONNECTION, *forwards)


def run_session(remote: Remote, session: Session, ports: Sequence[int], *, terminal: bool) -> int:
    """Run the session, and return its exit code."""
    warn(f"yard: editors: add `Include {remote.stack.ssh_config}` to ~/.ssh/config, then connect to a node by its name")
    for port in ports:
        warn(f"yard: http://127.0.0.1:{port} will be port {port} of the session's node")
    # Unlike `ssh`, `run` prints why a tunnel failed. `run` also opens the shared connection.
    remote.run("true")
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        forwarding = pool.submit(_forward, remote, session, ports, ended)
        try:
            code = _wait_for_ssh(session_argv(remote, session, terminal=terminal))
        finally:
            ended.set()
    # After Ctrl-C, this line is not executed, so interrupted forwarding causes no warning.
    if problem := forwarding.result():
        warn(f"yard: the ports were not forwarded: {problem}")
    return code


def _wait_for_ssh(argv: Sequence[str]) -> int:
    """Run ssh and return its exit code. SIGTERM and SIGHUP also end ssh, so that the session releases its nodes."""
    received: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def end(number: int, _: object) -> None:
        received.append(number)
        if process:
            process.terminate()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with subprocess.Popen(argv) as process:
            if received:  # the signal arrived before `process` was assigned
                process.terminate()
            try:
                code = process.wait()
            finally:
                process.terminate()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def show_session(remote: Remote, session: Session, ports: Sequence[int], *, terminal: bool) -> None:
    """Print the ssh commands as JSON. `forward` is null without ports, or if the node is not known yet."""
    forward = forward_argv(remote, session.node, ports) if ports and session.node else None
    say_json({"argv": session_argv(remote, session, terminal=terminal), "forward": forward})


def _forward(remote: Remote, session: Session, ports: Sequence[int], ended: threading.Event) -> str:
    """Forward ports to the session's node from the moment the node is known until `ended` is set.

    Return the reason for a failure, or ''. Nothing is printed, because the session uses the terminal.
    """
    scheduler, node = scheduler_of(remote.stack.cluster.scheduler), None
    while ports and node is None:
        if ended.is_set():
            return ""
        try:
            node = scheduler.session_node(remote, session)
        except RemoteError as error:
            return str(error)
        if node is None:
            ended.wait(_SECONDS_BETWEEN_QUERIES)
    if node is None:
        return ""
    quiet = subprocess.DEVNULL
    command = forward_argv(remote, node, ports)
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, text=True)
    while process.poll() is None and not ended.wait(0.2):
        pass
    failed = process.poll() is not None
    process.terminate()
    _, printed = process.communicate()
    return printed.strip() or "ssh ended" if failed else ""
