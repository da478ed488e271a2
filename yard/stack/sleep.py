"""`yard sleep` stops a whole cluster, and `yard wake` starts it again.

trainyard-repair on the head stops the machines (repair/sleep.py). The head cannot start itself, so yard starts its
machine with the cloud's command-line tool, or on this computer.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard import project
from trainyard.errors import JobError, RemoteError, StackError, UnreachableError
from trainyard.faults import NOTICES, SLEEP_REQUEST, SLEEPING
from trainyard.outputs import LOCAL_WAKE, Head
from yard.show import answer, warn
from yard.stack.remote import Remote

WARNING_SECONDS = 60
"""How long before the cluster stops the people who are logged in are warned."""
_STOP_SECONDS = 900
_SHUTDOWN_SECONDS = 90
_WAKE_SECONDS = 900
"""A machine of a cloud can take minutes until sshd accepts connections."""
_POLL_SECONDS = 3
_LOGIN = re.compile(r"(?m)^sshd(?:-session)?: (\S+)@pts/\d+")
"""A session with a terminal, as sshd names its process (sshd-session since OpenSSH 9.8)."""
_LIST = "sudo -n squeue -h -a -t R,CF,CG,S -o '%i|%u' && echo === && ps -eo args="
_FIX = "Fix: add `idle: {minutes: 60}` to the stack file, and run `pulumi up`"


def sleep(remote: Remote, as_json: bool, *, force: bool) -> None:
    """Stop the cluster, and wait until its head is unreachable.

    Raises JobError if a job is running, or if a person is logged in and `force` is not set.
    """
    head = remote.stack.cluster.head
    if head.wake is None:
        raise StackError(f"the head of cluster {remote.stack.cluster.name} may not stop machines. {_FIX}")
    begin = time.monotonic()
    jobs, _, processes = remote.run(_LIST, admin=True).partition("===\n")
    running = [f"{number} ({user})" for number, _, user in (line.partition("|") for line in jobs.split())]
    people = sorted(set(_LOGIN.findall(processes)))
    problems = []
    if running:
        problems.append(f"these jobs are running: {', '.join(running)}. Fix: wait, or cancel them with `yard cancel`")
    if people and not force:
        problems.append(f"these users are logged in: {', '.join(people)}. Fix: `yard sleep --force` warns them first")
    if problems:
        raise JobError(f"cluster {remote.stack.cluster.name} does not stop: {'; '.join(problems)}")
    delay = WARNING_SECONDS if people else 0
    _request(remote, delay)
    if delay:
        warn(f"{', '.join(people)} can save their work for {delay} s. Ctrl-C keeps the cluster running")
    try:
        _wait_until_asleep(remote, delay + _STOP_SECONDS)
    except KeyboardInterrupt:
        remote.run(f"sudo -n rm -f {_request_file(remote)}", admin=True)
        warn("the cluster keeps running")
        raise
    seconds = time.monotonic() - begin
    text = f"cluster {remote.stack.cluster.name} sleeps ({seconds:.0f} s). To start it again, run `yard wake`"
    answer(text, {"asleep": True, "seconds": round(seconds, 1)}, as_json)


def _request_file(remote: Remote) -> str:
    return shlex.quote(f"{remote.stack.cluster.state_dir}/{SLEEP_REQUEST}")


def _request(remote: Remote, delay: float) -> None:
    name = remote.stack.cluster.name
    text = f"{name} stops in {delay:.0f} s, because an admin has run yard sleep. Waiting jobs start after yard wake."
    said = f"sudo -n wall -n {shlex.quote(text)} || true; " if delay else ""
    # The head's clock counts, and the file is complete when it appears. Root follows no link (`set -C`) in the folder,
    # to which trainyard-repair can write although it is confined.
    file = _request_file(remote)
    text = f'{{\\"at\\": $(($(date +%s) + {delay:.0f}))}}'
    write = f'set -C; rm -f {file}.new && echo "{text}" >{file}.new && mv -T {file}.new {file}'
    remote.run(f"{said}sudo -n sh -c {shlex.quote(write)}", admin=True)


def _wait_until_asleep(remote: Remote, seconds: float) -> None:
    """Wait until the head is unreachable. Raises StackError if the head refuses the request."""
    deadline, file = time.monotonic() + seconds, _request_file(remote)
    missing_since: float | None = None
    while time.monotonic() < deadline:
        try:
            state = remote.run(f"sudo -n cat {file} 2>/dev/null || true", admin=True)
        except UnreachableError:
            return
        found = _object(state)
        missing_since = None if found else missing_since or time.monotonic()
        # While the head shuts down, the file's disk is unmounted, but sshd can still answer.
        is_withdrawn = missing_since is not None and time.monotonic() - missing_since > _SHUTDOWN_SECONDS
        if "refused" in found or is_withdrawn:
            why = found.get("refused", "the request was withdrawn")
            raise StackError(
                f"cluster {remote.stack.cluster.name} does not stop: {why}. Fix: correct it, and try again"
            )
        time.sleep(_POLL_SECONDS)
    remote.run(f"sudo -n rm -f {file}", admin=True)
    raise StackError(
        f"cluster {remote.stack.cluster.name} has not stopped in {seconds:.0f} s. Fix: read the head's journal: "
        "`sudo journalctl -u trainyard-repair`"
    )


def _object(text: str) -> Mapping[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def wake(remote: Remote, as_json: bool) -> None:
    """Start the cluster's head if it is off, and wait until Slurm answers."""
    name = remote.stack.cluster.name
    if remote.stack.cluster.head.wake is None:
        raise StackError(f"cluster {name} never sleeps. {_FIX}")
    seconds = wake_if_asleep(remote)
    text = f"cluster {name} was awake" if seconds is None else f"cluster {name} is awake ({seconds:.0f} s)"
    answer(text, {"started": seconds is not None, "seconds": round(seconds or 0.0, 1)}, as_json)


def wake_if_asleep(remote: Remote) -> float | None:
    """Start the head if it cannot be reached, and return the time in seconds, or None if nothing was started.

    A cluster that never sleeps is not started. Raises StackError if the machine cannot be started, and RemoteError if
    the head refuses the login, or if Slurm does not answer in time.
    """
    head = remote.stack.cluster.head
    if head.wake is None:
        return None
    # trainyard-repair writes this notice before the cluster stops. After the next start, it opens the partitions again,
    # and withdraws the notice.
    notices = shlex.quote(f"{remote.stack.cluster.state_dir}/{NOTICES}")
    is_closed = f"grep -sx {shlex.quote(SLEEPING)} {notices} || true"
    try:
        if not remote.run(is_closed, seconds=90):
            return None
        warn(f"cluster {remote.stack.cluster.name} is starting or stopping; waiting until it accepts jobs")
    except UnreachableError:
        warn(f"cluster {remote.stack.cluster.name} sleeps. Its head is starting")
        _start(head.wake, head)
    begin = time.monotonic()
    while True:
        try:
            if not remote.run(f"scontrol ping >/dev/null && {{ {is_closed}; }}", seconds=90):
                return time.monotonic() - begin
            problem = RemoteError(
                f"the partitions are closed. Fix: read the journal of trainyard-repair on {head.name}"
            )
        except UnreachableError as error:
            # The machine was still stopping, or has stopped meanwhile.
            problem = error
            _start(head.wake, head)
        except RemoteError as error:
            problem = error
        if time.monotonic() - begin > _WAKE_SECONDS:
            raise problem
        time.sleep(_POLL_SECONDS)


def _start(words: Sequence[str], head: Head) -> None:
    if words[0] == LOCAL_WAKE:
        _start_here(words[1], head)
        return
    line = shlex.join(words)
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise StackError(
            f"`{words[0]}` is missing on this computer. Fix: install it, or run elsewhere: {line}"
        ) from None
    if done.returncode:
        raise StackError(
            f"{head.name} cannot be started: {done.stderr.strip()}. Fix: log in to the cloud, or ask an operator of "
            f"the cluster to run: {line}"
        )


def _start_here(folder: str, head: Head) -> None:
    """Start a machine on this computer with the program that starts machines for the head.

    Only machines of this project are started, because an outputs file from a different person could name any folder.
    """
    run = (project.state() / "run").resolve()
    if not Path(folder).resolve().is_relative_to(run):
        raise StackError(f"{head.name} is not in {run}. Fix: run the command in the project's folder")
    # Commands on a cluster do not import the components.
    program = project.CODE / "components" / "platforms" / "local" / "power.py"
    argv = [sys.executable, "-I", str(program), folder]
    done = subprocess.run(argv, input=f"start {head.name}\n", capture_output=True, text=True, check=False)
    why = _object(done.stdout).get("error") or done.stderr.strip()[-300:]
    if why:
        raise StackError(f"{head.name} cannot be started on this computer: {why}")
