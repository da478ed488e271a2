"""Connections to machines: dialled with patience, shared by every command, ended with the plugin."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import BoundedSemaphore, Lock

from offline.command.connection import PEER, Connection, remove_keys, write_config
from offline.command.mux import MuxSession, NotOpened
from offline.processes import is_running
from offline.resources import Operation, ResourceError

_FIRST_DELAY = 0.1
_DELAY_GROWTH = 1.5
_LONGEST_DELAY = 5.0
"""The official plugin's pauses between attempts, in seconds."""

_SESSIONS = 8
"""At a time per machine: sshd's own limit (MaxSessions) is 10, and a session is kept for ending commands."""

_END_SECONDS = 2.0
_PREFIX = "tyc-"
_WORDS_SHOWN = 3
"""Lines of ssh's: the first of them says why, where a proxy is in between."""

_LONGEST_TEMPORARY_PATH = 60
"""A socket's path may have 108 bytes, and ssh appends 17 to it for a moment."""

# What the master ends: only commands of its own connection are children of the sshd that this runs under.
_END_COMMANDS = """exec sh -c 'for p in $(cat /proc/$PPID/task/$PPID/children); do [ "$p" = $$ ] ||
kill -s TERM -- "-$p" 2>/dev/null || sudo -n kill -s TERM -- "-$p" 2>/dev/null; done'"""


class Link:
    """One connection. Thread-safe; dials when it is first needed, and again when it was lost between commands."""

    def __init__(self, where: Connection, folder: Path) -> None:
        self._where = where
        self._folder = folder
        self._lock = Lock()
        self._master: subprocess.Popen[str] | None = None
        self._commands_ended = False
        self.sessions = BoundedSemaphore(_SESSIONS)

    def open(
        self, operation: Operation, command: str, descriptors: Sequence[int], *, subsystem: bool = False
    ) -> MuxSession:
        """Start a command (see MuxSession). Only what happens before it runs is tried again.

        Raises ResourceError after `dialErrorLimit` failures, Stopped when the deployment is cancelled.
        """
        limit, delay, failures = self._where.dial_error_limit, _FIRST_DELAY, 0
        while True:
            try:
                self._connect(operation)
                return MuxSession(self._folder / "mux", command, descriptors, subsystem=subsystem)
            except NotOpened as problem:
                failures += 1
                reason = str(problem)
            if 0 <= limit < failures:
                raise ResourceError(f"{self._name}: no connection after {failures} attempts: {reason}")
            operation.status(f"Dial {failures}/{'inf' if limit < 0 else limit} failed: {reason}; retrying")
            operation.stop.wait(delay)
            delay = min(delay * _DELAY_GROWTH, _LONGEST_DELAY)

    def end_commands(self) -> None:
        """End the processes that run over this connection, once, where the machine lets us see and signal them."""
        if self._commands_ended or not self._alive:
            return
        self._commands_ended = True
        null = os.open(os.devnull, os.O_RDWR)
        try:
            session = MuxSession(self._folder / "mux", _END_COMMANDS, [null] * 3, seconds=_END_SECONDS)
            session.exit_status()
            session.close()
        except NotOpened:
            pass  # the connection went by itself, and with it all that can be done
        finally:
            os.close(null)

    def close(self) -> None:
        """End the connection."""
        master = self._master
        if master is None:
            return
        master.terminate()
        try:
            master.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            master.kill()
            master.wait()

    @property
    def _alive(self) -> bool:
        return self._master is not None and self._master.poll() is None

    @property
    def _name(self) -> str:
        endpoint = self._where.endpoint
        return f"{endpoint.user}@{endpoint.host} port {endpoint.port}"

    def _connect(self, operation: Operation) -> None:
        with self._lock:
            if not self._alive:
                self._dial(operation)

    def _dial(self, operation: Operation) -> None:
        """Log in. Raises NotOpened with ssh's own last words."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        (self._folder / "mux").unlink(missing_ok=True)
        config = write_config(self._folder, self._where, os.environ.get("SSH_AUTH_SOCK", ""))
        words = self._folder / "stderr"
        with words.open("w") as stderr:
            master = subprocess.Popen(
                [*_tied_to_this_process(), "ssh", "-F", str(config), "-n", "-N", "-T", PEER],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, "SHELL": "/bin/sh", "LC_ALL": "C"},
            )
        try:
            assert master.stdout is not None  # noqa: S101 - it was asked for
            with master.stdout, operation.stop.calling(master.terminate):
                connected = bool(master.stdout.readline())
        finally:
            remove_keys(self._folder)
        if not connected:
            master.wait()
            operation.stop.wait(0)
            raise NotOpened(_last_words(words) or f"ssh ended with {master.returncode}")
        self._master = master


class Links:
    """Every connection of this plugin, in a folder that only this user can look into."""

    def __init__(self) -> None:
        self._folder = _private_folder()
        self._lock = Lock()
        self._links: dict[Connection, Link] = {}

    def to(self, where: Connection) -> Link:
        """Return the one link to this place, not necessarily dialled yet."""
        with self._lock:
            return self._links.setdefault(where, Link(where, self._folder / str(len(self._links))))

    def close(self) -> None:
        """End all connections and remove what they left."""
        with self._lock:
            for link in self._links.values():
                link.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _private_folder() -> Path:
    """Make a folder for sockets, and remove those of plugins that were killed. Keys lie in it only while dialling."""
    usual = tempfile.gettempdir()
    parent = Path(usual if len(usual) <= _LONGEST_TEMPORARY_PATH else "/tmp")  # noqa: S108 - private by mkdtemp
    for left in parent.glob(f"{_PREFIX}*-*"):
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and _is_ours(left) and not is_running(int(owner)):
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _tied_to_this_process() -> list[str]:
    """Return the words before `ssh` that make it end when this process is killed (Linux)."""
    return ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []


def _last_words(path: Path) -> str:
    lines = path.read_text(errors="replace").split("\n")
    return "; ".join([line.strip() for line in lines if line.strip()][-_WORDS_SHOWN:])
