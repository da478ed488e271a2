"""The few words of SFTP (version 3, draft-ietf-secsh-filexfer-02) that copying needs, over a pair of pipes."""

from __future__ import annotations

import stat
import struct
from typing import BinaryIO

from offline.resources import ResourceError

_INIT, _OPEN, _CLOSE, _WRITE, _MKDIR, _STAT = 1, 3, 4, 6, 14, 17
_VERSION_REPLY, _STATUS, _HANDLE, _ATTRIBUTES = 2, 101, 102, 105
_VERSION = 3
_OK, _NO_SUCH_FILE = 0, 2
_READ_WRITE_CREATE_TRUNCATE = 0x1 | 0x2 | 0x8 | 0x10
_HAS_SIZE, _HAS_OWNER, _HAS_MODE = 0x1, 0x2, 0x4
_CHUNK = 32 * 1024
"""The largest write that every server takes."""
_UNANSWERED = 32
"""Writes under way at once. Their answers fit into a pipe, so neither side can block the other."""


class Sftp:
    """Raises ResourceError with the server's words, and when the connection ends."""

    def __init__(self, to_server: BinaryIO, from_server: BinaryIO) -> None:
        self._out = to_server
        self._in = from_server
        self._number = 0
        self._send(_INIT, struct.pack(">I", _VERSION))
        self._receive()  # the server's version: 3 or later, and the later ones speak 3 when asked to

    def is_folder(self, path: str) -> bool | None:
        """Tell whether the path is a folder; None when there is nothing."""
        kind, body = self._ask(_STAT, _string(path))
        if kind == _STATUS:
            if _code(body) == _NO_SUCH_FILE:
                return None
            raise ResourceError(f"could not look at remote path {path}: {_words(body)}")
        return stat.S_ISDIR(_mode(body))

    def make_folder(self, path: str) -> None:
        """Create one folder."""
        self._expect(*self._ask(_MKDIR, _string(path) + struct.pack(">I", 0)), f"could not create remote folder {path}")

    def write(self, path: str, source: BinaryIO) -> None:
        """Create or overwrite a file. Its mode is the server's default, or stays what it was."""
        flags = struct.pack(">II", _READ_WRITE_CREATE_TRUNCATE, 0)
        kind, body = self._ask(_OPEN, _string(path) + flags)
        if kind != _HANDLE:
            raise ResourceError(f"could not create remote file {path}: {_words(body)}")
        handle, offset, unanswered = body, 0, 0
        while chunk := source.read(_CHUNK):
            self._request(_WRITE, handle + struct.pack(">QI", offset, len(chunk)) + chunk)
            offset += len(chunk)
            unanswered += 1
            if unanswered == _UNANSWERED:
                self._expect(*self._reply(), f"could not write remote file {path}")
                unanswered -= 1
        for _ in range(unanswered):
            self._expect(*self._reply(), f"could not write remote file {path}")
        self._expect(*self._ask(_CLOSE, handle), f"could not write remote file {path}")

    def _ask(self, kind: int, body: bytes) -> tuple[int, bytes]:
        self._request(kind, body)
        return self._reply()

    def _request(self, kind: int, body: bytes) -> None:
        self._number += 1
        self._send(kind, struct.pack(">I", self._number) + body)

    def _reply(self) -> tuple[int, bytes]:
        """Return the next answer without its number: OpenSSH answers in order, and only errors need telling apart."""
        kind, body = self._receive()
        return kind, body[4:]

    def _expect(self, kind: int, body: bytes, what: str) -> None:
        if kind != _STATUS or _code(body) != _OK:
            raise ResourceError(f"{what}: {_words(body)}")

    def _send(self, kind: int, body: bytes) -> None:
        try:
            self._out.write(struct.pack(">IB", len(body) + 1, kind) + body)
            self._out.flush()
        except OSError as problem:
            raise ResourceError(f"the connection was lost while copying: {problem}") from problem

    def _receive(self) -> tuple[int, bytes]:
        head = self._in.read(5)
        if len(head) < 5:  # noqa: PLR2004 - the length and the kind
            raise ResourceError("the connection ended while copying, or the server has no sftp subsystem")
        length, kind = struct.unpack(">IB", head)
        return kind, self._in.read(length - 1)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">I", len(data)) + data


def _code(body: bytes) -> int:
    return int(struct.unpack(">I", body[:4])[0])


def _words(body: bytes) -> str:
    (length,) = struct.unpack(">I", body[4:8])
    return body[8 : 8 + length].decode(errors="replace")


def _mode(body: bytes) -> int:
    (flags,) = struct.unpack(">I", body[:4])
    if not flags & _HAS_MODE:
        return 0
    offset = 4 + (8 if flags & _HAS_SIZE else 0) + (8 if flags & _HAS_OWNER else 0)
    return int(struct.unpack(">I", body[offset : offset + 4])[0])
