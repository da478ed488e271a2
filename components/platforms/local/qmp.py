"""Shuts down a running machine through QEMU's monitor (QMP)."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

_SECONDS = 5.0
_CTRL_ALT_DELETE = [{"type": "qcode", "data": key} for key in ("ctrl", "alt", "delete")]
_COMMANDS: tuple[dict[str, Any], ...] = (
    {"execute": "qmp_capabilities"},
    # systemd reboots on Ctrl-Alt-Delete, and QEMU then exits. A power button event would have no effect, because
    # only systemd-logind handles it, which the image does not run.
    {"execute": "set-action", "arguments": {"reboot": "shutdown"}},
    {"execute": "send-key", "arguments": {"keys": _CTRL_ALT_DELETE}},
)


def begin_shutdown(monitor: Path) -> bool:
    """Begin the shutdown of the guest. Returns False if the monitor does not respond or rejects a command."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(_SECONDS)
            link.connect(str(monitor))
            with link.makefile("rw", encoding="utf-8") as stream:
                stream.readline()  # the greeting
                for command in _COMMANDS:
                    stream.write(json.dumps(command) + "\n")
                    stream.flush()
                    if "error" in _response(stream):
                        return False
    except (OSError, ValueError):
        return False
    return True


def _response(stream: Any) -> dict[str, Any]:
    """Return the response to a command, skipping events. Raises ValueError if the connection is closed."""
    while True:
        message: dict[str, Any] = json.loads(stream.readline())
        if "event" not in message:
            return message
