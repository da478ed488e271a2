"""Forwards SSH connections through a tunnel that a cloud's command line opens. A program of its own, stdlib only.

    relay.py stdio LOG COMMAND...    one connection over stdin and stdout, for OpenSSH's ProxyCommand
    relay.py serve PORT COMMAND...   every connection to 127.0.0.1:PORT, until stdin reaches its end

COMMAND listens on a loopback port, which replaces "{port}" in it, and runs until it is interrupted. Each connection has
a COMMAND of its own: `az network bastion tunnel` mixes up the sessions of concurrent connections
(Azure/azure-cli-extensions@144a628:src/bastion/azext_bastion/tunnel.py, issue 10137; read 2026-11-22).

`stdio` writes the reason of a failure to LOG as well: with ControlPersist, OpenSSH discards a ProxyCommand's stderr.
`serve` prints "ready" on stdout once an SSH server has answered, or "error REASON"; failed attempts go to stderr.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from subprocess import DEVNULL, PIPE, STDOUT, Popen

_LOOPBACK = "127.0.0.1"
_STDIO_SECONDS, _SERVE_SECONDS = 40.0, 900.0
"""Less than the minute that yard gives a short command; a GPU machine's time from power-on to its first SSH answer."""
_ANSWER_SECONDS = 30.0
"""How long an accepted connection may stay silent. An SSH server speaks first."""
_LONGEST_PAUSE = 15.0

_FINAL = ("az login", "gcloud auth login", "AuthorizationFailed", "unrecognized arguments")
"""Parts of messages after which another attempt cannot succeed: no login (azure-cli core/_profile.py, read 2026-11-22;
gcloud 528.0.0), no permission, an unknown option. IAP's 4033 is not one: it also means that a machine is stopped."""
_ENDING = ((signal.SIGINT, 8.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))
"""Signals and the seconds that each has. On SIGINT `az network bastion tunnel` deletes its session."""


class TunnelError(Exception):
    """A tunnel that carried no SSH connection."""


class FinalError(TunnelError):
    """Another attempt cannot succeed."""


class Cli:
    """One running COMMAND in a session of its own, and what it printed last."""

    def __init__(self, command: Sequence[str]) -> None:
        self._name = command[0]
        self._port = _free_port()
        words = [word.replace("{port}", str(self._port)) for word in command]
        try:
            # A session of its own: Ctrl-C does not reach it, and its group can be ended as a whole (`az` is a shell
            # script that starts Python).
            self._process = Popen(
                words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, errors="replace", start_new_session=True
            )
        except OSError as error:
            raise FinalError(f"cannot run {self._name} ({error.strerror}); install it, or correct PATH") from error
        self._printed: deque[str] = deque(maxlen=8)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def connect(self, deadline: float) -> tuple[socket.socket, bytes]:
        """Return a connection on which the far end has spoken, and its first bytes. Raises TunnelError."""
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                patience = max(min(_ANSWER_SECONDS, deadline - time.monotonic()), 0.1)
                connection = socket.create_connection((_LOOPBACK, self._port), timeout=patience)
                with contextlib.suppress(OSError):
                    if first := connection.recv(4096):
                        connection.settimeout(None)
                        return connection, first
                connection.close()
                time.sleep(1)
            time.sleep(0.1)
        raise self._failure()

    def _failure(self) -> TunnelError:
        code = self._process.poll()
        self._reader.join(1 if code is not None else 0)
        printed = " | ".join(self._printed) or "it printed nothing"
        kind = FinalError if code is not None and any(part in printed for part in _FINAL) else TunnelError
        what = "carried no SSH answer" if code is None else f"ended with exit code {code}"
        return kind(f"{self._name} {what}: {printed}")

    def end(self) -> None:
        """End the command and everything that it started."""
        for number, seconds in _ENDING:
            if self._group_is_gone(number):
                return
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if self._group_is_gone(0):
                    return
                time.sleep(0.02)

    def _group_is_gone(self, number: int) -> bool:
        """Send a signal to the command's process group (0: none). Returns whether the group has no process left."""
        self._process.poll()  # reaps it: a zombie would stay in its group
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return True
        return False

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if line.strip():
                self._printed.append(line.strip())


class Tunnels:
    """Opens tunnels, and ends all that are open when the program ends."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._open: set[Cli] = set()
        self._lock = threading.Lock()
        self._closed = False

    def open(self, seconds: float, note: Callable[[str], None]) -> tuple[Cli, socket.socket, bytes]:
        """Return a tunnel, a connection through it and the server's first bytes, however often the command fails.

        `note` gets the reason of each attempt that failed. Raises TunnelError after `seconds`, or a final failure.
        """
        deadline, pause = time.monotonic() + seconds, 1.0
        while True:
            cli = self._start()
            try:
                return cli, *cli.connect(deadline)
            except TunnelError as error:
                self.close(cli)
                if isinstance(error, FinalError) or time.monotonic() + pause > deadline:
                    raise
                note(str(error))
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _start(self) -> Cli:
        # In a thread of its own: the signal handler raises in the main thread, and must not run between the start of a
        # command and its entry in the set of commands to end.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._start_here).result()

    def _start_here(self) -> Cli:
        with self._lock:
            if self._closed:
                raise FinalError("the program ends")
            cli = Cli(self._command)
            self._open.add(cli)
            return cli

    def close(self, cli: Cli) -> None:
        """End one tunnel."""
        cli.end()
        self._open.discard(cli)

    def close_all(self) -> None:
        """End all of them at once, and start no more. Called in the main thread, which alone may set handlers."""
        _ignore_signals()
        with self._lock:
            self._closed = True
        with ThreadPoolExecutor(len(self._open) or 1) as threads:
            threads.map(Cli.end, tuple(self._open))


def relay(source: int, sink: int, connection: socket.socket, first: bytes) -> None:
    """Copy between two descriptors and a connection until either end closes."""

    def send() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(source, 65536):
                connection.sendall(data)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=send, daemon=True).start()
    with contextlib.suppress(OSError), open(sink, "wb", closefd=False) as out:
        while first:
            out.write(first)
            out.flush()
            first = connection.recv(65536)


def stdio(log: str, command: Sequence[str]) -> int:
    """Carry one connection. Returns the exit code."""
    # Ctrl-C reaches this program too, and must not end a connection that ControlMaster shares. Unlike SIG_IGN, a
    # handler is not inherited by the command.
    signal.signal(signal.SIGINT, lambda *_: None)
    tunnels = Tunnels(command)
    try:
        _, connection, first = tunnels.open(_STDIO_SECONDS, lambda reason: _report(log, reason))
        _report(log, "")
        relay(0, 1, connection, first)
    except TunnelError as error:
        _report(log, str(error))
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        tunnels.close_all()
    return 0


def serve(port: int, command: Sequence[str]) -> int:
    """Carry every connection to a port until this program is ended. Returns the exit code of a failure."""
    try:
        listener = socket.create_server((_LOOPBACK, port))
    except OSError as error:
        print(f"error cannot listen on port {port} of this machine ({error.strerror})", flush=True)  # noqa: T201
        return 1
    tunnels, failed = Tunnels(command), threading.Event()

    def carry(client: socket.socket) -> None:
        with client, contextlib.suppress(TunnelError):
            cli, connection, first = tunnels.open(_ANSWER_SECONDS * 2, _complain)
            relay(client.fileno(), client.fileno(), connection, first)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads it
            tunnels.close(cli)

    def accept() -> None:
        try:
            cli, connection, _ = tunnels.open(_SERVE_SECONDS, _complain)
        except TunnelError as error:
            print(f"error {error}", flush=True)  # noqa: T201
            failed.set()
            return
        connection.close()
        threading.Thread(target=tunnels.close, args=(cli,), daemon=True).start()
        print("ready", flush=True)  # noqa: T201
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=carry, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        failed.wait()
    finally:
        # Frees the port at once, although `az` has seconds to delete its session. Only a shutdown wakes `accept`.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        tunnels.close_all()
    return 1


def _report(log: str, reason: str) -> None:
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(reason)


def _complain(reason: str) -> None:
    with contextlib.suppress(OSError):
        print(f"tunnel to the head: {reason}; trying again", file=sys.stderr, flush=True)  # noqa: T201


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def _end_at_hangup() -> None:
    """End this program when whatever holds the other end of stdin is gone, also while no connection reads stdin."""
    poller = select.poll()
    poller.register(0, 0)
    poller.poll()
    os.kill(os.getpid(), signal.SIGTERM)


def _ignore_signals() -> None:
    # ssh sends a signal and closes stdin at the same time: the second must not cut the ending short.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)


def _stop(*_: object) -> None:
    _ignore_signals()
    raise SystemExit(1)


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    threading.Thread(target=_end_at_hangup, daemon=True).start()
    mode, place, *command = sys.argv[1:]
    return serve(int(place), command) if mode == "serve" else stdio(place, command)


if __name__ == "__main__":
    sys.exit(main())
