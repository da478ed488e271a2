"""One session over a running ssh master, in OpenSSH's multiplexing protocol (PROTOCOL.mux in its source).

Talking to the master's socket directly spares a process per command, keeps the command out of every local process's
arguments, and tells a session that never began (safe to try again) from a command that ran (never repeated).
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

_HELLO = 0x00000001
_NEW_SESSION = 0x10000002
_SESSION_OPENED = 0x80000006
_EXIT_MESSAGE = 0x80000004
_PERMISSION_DENIED = 0x80000002
_FAILURE = 0x80000003
_VERSION = 4
_NO_ESCAPE_CHARACTER = 0xFFFFFFFF
_REQUEST = 1


class NotOpened(Exception):
    """The master did not open the session: nothing was run."""


class MuxSession:
    """A remote process whose standard input, output and error are three of our file descriptors."""

    def __init__(
        self,
        master: Path,
        command: str,
        descriptors: Sequence[int],
        *,
        subsystem: bool = False,
        seconds: float | None = None,
    ) -> None:
        """Start `command`, or the subsystem of that name. `seconds` bounds each wait for the master.

        Raises NotOpened.
        """
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(seconds)
        try:
            self._socket.connect(str(master))
            self._send(struct.pack(">II", _HELLO, _VERSION))
            self._receive()  # the master's hello
            self._send(_new_session(command, subsystem))
            for descriptor in descriptors:
                socket.send_fds(self._socket, [b"\0"], [descriptor])
            kind, rest = self._receive()
        except OSError as problem:
            self.close()
            raise NotOpened(f"the connection was lost: {problem}") from problem
        if kind != _SESSION_OPENED:
            self.close()
            raise NotOpened(_reason(kind, rest))

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the remote process ends."""
        return self._socket.fileno()

    def exit_status(self) -> int | None:
        """Wait for the end; None when it ended without a status: by a signal, or with the connection."""
        with contextlib.suppress(OSError):
            while True:
                kind, rest = self._receive()
                if kind == _EXIT_MESSAGE:
                    return int(struct.unpack(">II", rest[:8])[1])
        return None

    def end(self) -> None:
        """Ask the master to close the session; whoever waits for it sees its end."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the session."""
        self._socket.close()

    def _send(self, body: bytes) -> None:
        self._socket.sendall(struct.pack(">I", len(body)) + body)

    def _receive(self) -> tuple[int, bytes]:
        (length,) = struct.unpack(">I", self._exactly(4))
        body = self._exactly(length)
        return int(struct.unpack(">I", body[:4])[0]), body[4:]

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise ConnectionError("ssh ended")
            data += part
        return data


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">I", len(data)) + data


def _new_session(command: str, subsystem: bool) -> bytes:
    flags = struct.pack(">IIIII", 0, 0, 0, int(subsystem), _NO_ESCAPE_CHARACTER)  # no terminal, no X11, no agent
    head = struct.pack(">II", _NEW_SESSION, _REQUEST)
    return head + _string("") + flags + _string("") + _string(command)


def _reason(kind: int, rest: bytes) -> str:
    if kind in (_PERMISSION_DENIED, _FAILURE):
        return rest[8:].decode(errors="replace")
    return f"ssh answered {kind:#x}"
