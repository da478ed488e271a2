"""Runs `pulumi` with the backend and the stack that are selected in the current shell.

No other module starts `pulumi` or reads .trainyard/env.sh. The backend and the stack are read from Pulumi's files,
because each pulumi command takes half a second. Sources: pulumi/pulumi v3.250.0, pkg/workspace/creds.go,
pkg/workspace/workspace.go, pkg/backend/state/stacks.go and pkg/backend/diy/backend.go, 2026-11-22.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

from trainyard import project
from trainyard.errors import StackError
from yard.show import warn

_CLOUD = "https://api.pulumi.com"
_PRIVATE = "/.trainyard/state"
"""The end of the backend URL that env.sh sets."""
_DIY_ORGANIZATION = "organization"
"""All stacks outside Pulumi Cloud belong to this organization."""
_SIGNAL_SECONDS = 5.0
_SECONDS = 120.0
_OF_THE_BACKEND = ("PULUMI_BACKEND_URL", "PULUMI_HOME", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE")
"""Variables that env.sh sets to select the backend in .trainyard."""
_INSTALL = "install the Pulumi CLI (https://www.pulumi.com/docs/install)"
_JOB_USER_FIX = (
    "for jobs, set TRAINYARD_OUTPUTS to the file that the cluster's operator sent you. For other commands, ask an "
    "operator, or install the Pulumi CLI and run yard in the cluster's project"
)


def backend_url(variables: Mapping[str, str]) -> str:
    """Return the URL of the backend that `pulumi` uses with these variables, or "" if no backend is selected."""
    if url := variables.get("PULUMI_BACKEND_URL") or _project_backend():
        return url
    folder = variables.get("PULUMI_CREDENTIALS_PATH")
    current = _json(Path(folder) if folder else _home(variables), "credentials.json").get("current")
    return str(current or (_CLOUD if variables.get("PULUMI_ACCESS_TOKEN") else ""))


def is_chosen(variables: Mapping[str, str]) -> bool:
    """Return whether the user has selected a backend with a variable, `pulumi login` or Pulumi.yaml."""
    url = backend_url(variables)
    return bool(url) and not url.partition("?")[0].endswith(_PRIVATE)


def backend_folder(variables: Mapping[str, str]) -> Path | None:
    """Return the folder of a file:// backend, or None for any other backend."""
    url = backend_url(variables)
    if not url.startswith("file://"):
        return None
    path = url.removeprefix("file://").partition("?")[0]
    expanded = _user_home() / path.removeprefix("~").lstrip("/") if path.startswith("~") else Path(path)
    return (project.ROOT / expanded) if project.exists() else expanded.absolute()


def state_file(variables: Mapping[str, str], stack: str) -> Path | None:
    """Return the path of the stack's state, or None if the backend is not a file:// backend."""
    backend = backend_folder(variables)
    name = stack.rpartition("/")[2]
    return backend / ".pulumi" / "stacks" / project.name() / f"{name}.json" if backend else None


def selected_stack(variables: Mapping[str, str]) -> str | None:
    """Return the stack that PULUMI_STACK or `pulumi stack select` has selected, or None if no stack is selected.

    The name contains the organization only on Pulumi Cloud.
    """
    name = variables.get("PULUMI_STACK") or _recorded_stack(variables)
    parts = name.split("/")
    return parts[-1] if parts[0] == _DIY_ORGANIZATION else name or None


def _recorded_stack(variables: Mapping[str, str]) -> str:
    # Pulumi hashes the path of Pulumi.yaml as given by the shell's PWD. This path can contain symbolic links.
    shell = Path(variables.get("PWD", ""))
    logical = [
        folder for folder in (shell, *shell.parents) if folder.is_absolute() and folder.resolve() == project.ROOT
    ]
    for folder in (*logical, project.ROOT):
        digest = hashlib.sha1(str(folder / "Pulumi.yaml").encode(), usedforsecurity=False).hexdigest()
        found = _json(_home(variables) / "workspaces", f"{project.name()}-{digest}-workspace.json").get("stack")
        if found:
            return str(found)
    return ""


def _project_backend() -> str:
    try:
        text = (project.ROOT / "Pulumi.yaml").read_text()
    except OSError:
        return ""
    if "backend" not in text:
        return ""
    import yaml  # noqa: PLC0415  (most projects do not need this slow import)

    try:
        return str(yaml.safe_load(text)["backend"]["url"])
    except (yaml.YAMLError, KeyError, TypeError):
        return ""


def _home(variables: Mapping[str, str]) -> Path:
    return Path(variables.get("PULUMI_HOME") or _user_home() / ".pulumi")


def _user_home() -> Path:
    # Pulumi ignores HOME if the user is in the passwd database.
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path.home()


def _json(folder: Path, name: str) -> dict[str, Any]:
    try:
        found = json.loads((folder / name).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def end_session(session: int) -> None:
    """End all processes in a session, for example the plugins of a killed pulumi process.

    Local virtual machines keep running, because they have their own sessions.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + _SIGNAL_SECONDS
        for pid in session_members(session):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        while session_members(session) and time.monotonic() < deadline:
            time.sleep(0.05)


def session_members(session: int) -> list[int]:
    """Return the PIDs of the live processes in a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] not in "ZX" and int(fields[3]) == session:
            found.append(int(folder.name))
    return found


@contextmanager
def interruptible(message: str) -> Iterator[None]:
    """At the first SIGINT, SIGTERM or SIGHUP, print `message` and raise KeyboardInterrupt. Ignore later signals."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in before:
            # Child processes would inherit SIG_IGN, but not a handler.
            signal.signal(each, lambda number, frame: None)
        warn(f"\ninterrupted: {message}")
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StackInUse(StackError):
    """A live pulumi process on this machine holds the stack's lock."""


def clear_stale(backend: Path, stack: str) -> list[int]:
    """Remove the stack's locks if their processes on this machine have ended, and return the PIDs of the processes.

    Raises StackInUse if a process is still running, and StackError if a lock is unreadable or from another machine.
    """
    cleared = []
    for lock in sorted((backend / ".pulumi" / "locks" / "organization" / project.name() / stack).glob("*.json")):
        try:
            holder = json.loads(lock.read_text())
            pid, host, since = int(holder["pid"]), str(holder["hostname"]), holder["timestamp"]
        except (ValueError, KeyError, TypeError):
            raise StackError(
                f"stack '{stack}': the lock file {lock} cannot be read. Fix: if pulumi is not running, remove the file"
            ) from None
        if host != socket.gethostname():
            raise StackError(
                f"stack '{stack}' is locked by process {pid} on {host} since {since}. "
                f"Fix: wait until the process has ended. If it was killed, remove {lock}"
            )
        if _is_pulumi(pid):
            raise StackInUse(
                f"stack '{stack}' is in use: pulumi process {pid} since {since}. Fix: wait until it has ended, or stop "
                f"it with `kill -INT {pid}` and wait"
            )
        lock.unlink()
        lock.with_name(f"{lock.name}.attrs").unlink(missing_ok=True)
        cleared.append(pid)
    return cleared


def _is_pulumi(pid: int) -> bool:
    """Return whether `pid` is a running pulumi process. The PID of a process that has ended can be reused."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state != "Z" and Path(f"/proc/{pid}/comm").read_text().startswith("pulumi")
    except FileNotFoundError:
        return False


def environment(*, required: bool = False) -> dict[str, str]:
    """Return the environment for pulumi, with the variables from .trainyard/env.sh if that file exists.

    The backend's variables keep their values if the user has selected a backend in this shell. Raises StackError if
    bash cannot read the file, or if a checkout does not contain a `required` file. Other projects need no set-up.
    """
    setup = project.ROOT / ".trainyard" / "env.sh"
    if not setup.is_file():
        if required and project.ROOT == project.CODE:
            raise StackError(f"{setup} does not exist. Fix: run `make setup` first")
        # If Pulumi.yaml names no virtual environment, Pulumi starts the first python3 on PATH.
        return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"}
    version = setup.stat()
    found = dict(_sourced(setup, (version.st_mtime_ns, version.st_size), frozenset(os.environ.items())))
    if not is_chosen(os.environ):
        return found
    kept = {name: os.environ[name] for name in _OF_THE_BACKEND if name in os.environ}
    return {name: value for name, value in found.items() if name not in _OF_THE_BACKEND} | kept


@lru_cache(maxsize=1)
def _sourced(setup: Path, version: tuple[int, int], variables: frozenset[tuple[str, str]]) -> Mapping[str, str]:
    """Return the environment after bash has read `setup`. It is stored until an argument changes."""
    command = ["/bin/bash", "-c", '. "$1" && /usr/bin/env -0', "bash", str(setup)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(variables))
    if done.returncode:
        raise StackError(f"{setup} cannot be read: {done.stderr.strip()}; run `make setup` again")
    return dict(entry.partition("=")[::2] for entry in done.stdout.split("\0") if entry)


def run(
    words: Sequence[str],
    variables: Mapping[str, str],
    *,
    folder: Path | None = None,
    seconds: float | None = _SECONDS,
) -> subprocess.CompletedProcess[str]:
    """Run `pulumi WORDS` in `folder` and return its output. The default folder is the project, if there is one.

    Raises StackError if pulumi is missing or does not finish within `seconds`.
    """
    try:
        return subprocess.run(
            ["pulumi", *words],
            env=variables,
            cwd=folder or (project.ROOT if project.exists() else None),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        raise _missing() from None
    except subprocess.TimeoutExpired:
        raise StackError(f"pulumi did not finish within {seconds:.0f} s; check that its backend is reachable") from None


def start(
    words: Sequence[str], variables: Mapping[str, str], folder: Path | None, output: int | None = subprocess.PIPE
) -> subprocess.Popen[str]:
    """Start `pulumi WORDS` in a new session. If `output` is None, pulumi inherits this process's streams.

    Raises StackError if pulumi is missing.
    """
    try:
        return subprocess.Popen(
            ["pulumi", *words],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    except FileNotFoundError:
        raise _missing() from None


def _missing() -> StackError:
    operator = f"run `make setup`, or {_INSTALL}" if project.ROOT == project.CODE else _INSTALL
    return StackError(f"pulumi is not on PATH. Fix: {operator if project.exists() else _JOB_USER_FIX}")


def run_pulumi(
    words: Sequence[str],
    variables: Mapping[str, str],
    folder: Path | None = None,
    *,
    interrupted: Callable[[], object] = lambda: None,
) -> int:
    """Run pulumi and return its exit code, or 128 + N if signal N ended it. `interrupted` is called at each signal.

    pulumi runs in a new session, so Ctrl-C in a terminal reaches only this process. It then sends SIGINT to pulumi, and
    pulumi finishes its running operations and writes its state. A second SIGINT stops pulumi at once.
    """
    started: list[subprocess.Popen[str]] = []
    too_early: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        warn("\ninterrupted: pulumi finishes its running operations; press Ctrl-C again to stop it immediately")
        interrupted()
        if started:
            started[0].send_signal(signal.SIGINT)
        else:
            too_early.append(number)

    # Shells start background jobs with SIGINT ignored, and pulumi would inherit this. Because this process has a
    # handler, pulumi starts with the default action.
    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        started.append(start(words, variables, folder, output=None))
        if too_early:
            started[0].send_signal(signal.SIGINT)
        code = started[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for process in started:
            end_session(process.pid)
    return code if code >= 0 else 128 - code
