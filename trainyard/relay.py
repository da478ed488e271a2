"""Forwards SSH connections through tunnels that a cloud's CLI opens. Only the standard library is needed.

    relay.py stdio LOG COMMAND...    forwards stdin and stdout; for OpenSSH's ProxyCommand
    relay.py serve PORT COMMAND...   forwards every connection to 127.0.0.1:PORT until stdin is closed

COMMAND listens on the loopback port "{port}" until it is interrupted. Each connection uses a separate COMMAND, because
`az network bastion tunnel` mixes up the data of concurrent connections
(Azure/azure-cli-extensions@144a628:src/bastion/azext_bastion/tunnel.py, issue 10137; read 2026-11-22).

`stdio` also writes error messages to LOG, because OpenSSH with ControlPersist discards a ProxyCommand's stderr.
`serve` prints "ready" on stdout after an SSH server has answered, or "error REASON". Retries are reported on stderr.
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
"""Time limits for the first tunnel. `stdio` must end before yard's limit of 60 s for an SSH command, but `serve` waits
for GPU machines to boot."""
_ANSWER_SECONDS = 30.0
"""Time limit for the server's first bytes. An SSH server does not wait for a message from the client."""
_LONGEST_PAUSE = 15.0

_FINAL = ("az login", "gcloud auth login", "AuthorizationFailed", "unrecognized arguments")
"""Parts of error messages after which a retry is useless: no login (azure-cli core/_profile.py, read 2026-11-22; gcloud
528.0.0), no permission, unknown option. IAP's error 4033 is not included, because it can mean a stopped machine."""
_ENDING = ((signal.SIGINT, 8.0), (signal.SIGTERM, 2.0), (signal.SIGKILL, 2.0))
"""Signals, and the seconds to wait after each signal. After SIGINT, `az network bastion tunnel` deletes its session."""


class TunnelError(Exception):
    """The command did not open a tunnel to an SSH server."""


class FinalError(TunnelError):
    """An error that a retry cannot fix."""


class Cli:
    """A running COMMAND and the last lines of its output."""

    def __init__(self, command: Sequence[str]) -> None:
        self._name = command[0]
        self._port = _free_port()
        words = [word.replace("{port}", str(self._port)) for word in command]
        try:
            # In a new session, Ctrl-C does not reach the command, and a signal can reach the whole process group. The
            # whole group matters for `az`, a shell script that starts Python.
            self._process = Popen(
                words, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, errors="replace", start_new_session=True
            )
        except OSError as error:
            raise FinalError(f"cannot run {self._name} ({error.strerror}); install it, or correct PATH") from error
        self._printed: deque[str] = deque(maxlen=8)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def connect(self, deadline: float) -> tuple[socket.socket, bytes]:
        """Return a connection and the first bytes from the server. Raises TunnelError."""
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
        code = self._process.poll()
        self._reader.join(1 if code is not None else 0)
        printed = " | ".join(self._printed) or "it printed nothing"
        if code is None:
            raise TunnelError(f"{self._name} forwarded no response from an SSH server: {printed}")
        final = any(part in printed for part in _FINAL)
        raise (FinalError if final else TunnelError)(f"{self._name} ended with exit code {code}: {printed}")

    def end(self) -> None:
        """End all processes of the command."""
        for number, seconds in _ENDING:
            if self._group_is_gone(number):
                return
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if self._group_is_gone(0):
                    return
                time.sleep(0.02)

    def _group_is_gone(self, number: int) -> bool:
        """Send a signal to the command's process group, or none if `number` is 0. Return whether the group is empty."""
        self._process.poll()  # until it is reaped, a zombie stays in the group
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
    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._open: set[Cli] = set()
        self._lock = threading.Lock()
        self._closed = False

    def open(self, seconds: float, note: Callable[[str], None]) -> tuple[Cli, socket.socket, bytes]:
        """Return a tunnel, a connection through it and the server's first bytes. Raises TunnelError.

        A failed command is started again until `seconds` have passed, and `note` is called with each failure's reason.
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
        with self._lock:
            if self._closed:
                raise FinalError("the relay is ending")
            cli = Cli(self._command)
            self._open.add(cli)
            return cli

    def close(self, cli: Cli) -> None:
        cli.end()
        self._open.discard(cli)

    def close_all(self) -> None:
        """Close all tunnels in parallel. No tunnel can be opened afterwards."""
        with self._lock:
            self._closed = True
        with ThreadPoolExecutor(len(self._open) or 1) as threads:
            threads.map(Cli.end, tuple(self._open))


def relay(source: int, sink: int, connection: socket.socket, first: bytes) -> None:
    """Copy data between a connection and two file descriptors until one side is closed."""

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


def stdio(log: str, tunnels: Tunnels) -> int:
    """Forward stdin and stdout. Returns the exit code."""
    try:
        _, connection, first = tunnels.open(_STDIO_SECONDS, lambda reason: _report(log, reason))
    except TunnelError as error:
        _report(log, str(error))
        sys.stderr.write(f"{error}\n")
        return 1
    _report(log, "")
    relay(0, 1, connection, first)
    return 0


def serve(listener: socket.socket, tunnels: Tunnels) -> int:
    """Forward every connection until the listener is closed. Returns the exit code."""

    def forward(client: socket.socket) -> None:
        with client, contextlib.suppress(TunnelError):
            cli, connection, first = tunnels.open(_ANSWER_SECONDS * 2, _complain)
            relay(client.fileno(), client.fileno(), connection, first)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)  # ends the thread that reads from the client
            tunnels.close(cli)

    try:
        cli, connection, _ = tunnels.open(_SERVE_SECONDS, _complain)
    except TunnelError as error:
        print(f"error {error}", flush=True)  # noqa: T201
        return 1
    connection.close()
    threading.Thread(target=tunnels.close, args=(cli,), daemon=True).start()
    print("ready", flush=True)  # noqa: T201
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return 1
        threading.Thread(target=forward, args=(client,), daemon=True).start()


def until_end(work: Callable[[], int], *ignored: int) -> int:
    """Run `work` in a thread. Returns its exit code, or 1 if stdin is closed or a signal arrives first.

    Signals in `ignored` have no effect. OpenSSH sends a signal and closes stdin at the same time, so signal handlers
    must not interrupt the shutdown by raising an exception.
    """
    events, notify = os.pipe()
    os.set_blocking(notify, False)
    signal.set_wakeup_fd(notify)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The command would inherit SIG_IGN, but it does not inherit a handler.
        signal.signal(number, lambda *_: None)
    codes: list[int] = []

    def run() -> None:
        try:
            codes.append(work())
        finally:
            os.write(notify, b"\0")

    def wait_for_hangup() -> None:
        poller = select.poll()
        poller.register(0, 0)  # reports a closed stdin even if no thread reads it
        poller.poll()
        os.write(notify, b"\0")

    for target in (run, wait_for_hangup):
        threading.Thread(target=target, daemon=True).start()
    while os.read(events, 1)[0] in ignored:
        pass
    return codes[0] if codes else 1


def _report(log: str, reason: str) -> None:
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(reason)


def _complain(reason: str) -> None:
    with contextlib.suppress(OSError):
        print(f"tunnel to the head: {reason}; trying again", file=sys.stderr, flush=True)  # noqa: T201


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as probe:
        return int(probe.getsockname()[1])


def main() -> int:
    mode, place, *command = sys.argv[1:]
    tunnels = Tunnels(command)
    try:
        if mode == "stdio":
            # Ctrl-C also reaches this program, but must not end a connection that ControlMaster shares.
            return until_end(lambda: stdio(place, tunnels), signal.SIGINT)
        return _serve_port(int(place), tunnels)
    finally:
        tunnels.close_all()


def _serve_port(port: int, tunnels: Tunnels) -> int:
    try:
        listener = socket.create_server((_LOOPBACK, port))
    except OSError as error:
        print(f"error cannot listen on port {port} on this machine ({error.strerror})", flush=True)  # noqa: T201
        return 1
    try:
        return until_end(lambda: serve(listener, tunnels))
    finally:
        # Free the port now, because `az` takes seconds to delete its session. Only `shutdown` ends `accept`.
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


if __name__ == "__main__":
    sys.exit(main())
