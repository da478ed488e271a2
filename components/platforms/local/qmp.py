"""QEMU's monitor (QMP): the few words we say to a running machine."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

_SECONDS = 5.0


def ask(monitor: Path, *commands: dict[str, Any]) -> bool:
    """Send commands one after the other; False when the machine does not listen or refuses one of them."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_SECONDS)
            link.connect(str(monitor))
            with link.makefile("rw", encoding="utf-8") as stream:
                stream.readline()  # the greeting
                for command in ({"execute": "qmp_capabilities"}, *commands):
                    stream.write(json.dumps(command) + "\n")
                    stream.flush()
                    if "error" in _answer(stream):
                        return False
    except (OSError, ValueError):
        return False
    return True


def _answer(stream: Any) -> dict[str, Any]:
    """Return the answer to a command, past the events that come between. Raises ValueError when the link ends."""
    while True:
        message: dict[str, Any] = json.loads(stream.readline())
        if "event" not in message:
            return message


SHUT_DOWN: tuple[dict[str, Any], ...] = (
    # systemd answers these keys with an orderly restart, and the restart ends the machine. The power button would
    # need systemd-logind, which the image does without.
    {"execute": "set-action", "arguments": {"reboot": "shutdown"}},
    {
        "execute": "send-key",
        "arguments": {"keys": [{"type": "qcode", "data": key} for key in ("ctrl", "alt", "delete")]},
    },
)
QUIT: dict[str, Any] = {"execute": "quit"}
