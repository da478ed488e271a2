"""Asks other hosts for the time, and whether their ports are open."""

from __future__ import annotations

import socket
import struct
import time

_NTP_EPOCH = 2208988800
"""Seconds from 1900 to 1970 (RFC 5905, section 6)."""
_ANSWER_BYTES = 48
_UNSYNCHRONIZED = 3


def ntp_offset(host: str, timeout: float) -> float | None:
    """Return the clock's offset from an NTP server in seconds, or None if the server sent no usable response.

    One SNTP request (RFC 5905). The response is not used if the exchange took longer than one second.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout)
        try:
            client.connect((host, 123))
            sent, started = time.time(), time.monotonic()
            client.send(b"\x23" + bytes(47))
            answer = client.recv(512)
        except OSError:
            return None
        elapsed = time.monotonic() - started
    if len(answer) < _ANSWER_BYTES or answer[0] >> 6 == _UNSYNCHRONIZED or not answer[1] or elapsed > 1:
        return None
    server = (_ntp_time(answer, 32) + _ntp_time(answer, 40)) / 2
    return sent + elapsed / 2 - server


def _ntp_time(answer: bytes, at: int) -> float:
    """Return the time in seconds since 1970 that begins at an offset in an NTP packet."""
    seconds, fraction = struct.unpack("!II", answer[at : at + 8])
    return float(seconds - _NTP_EPOCH + fraction / 2**32)


def tcp(host: str, port: int, timeout: float) -> str:
    """Return "open", "refused" or "silent" for a TCP port."""
    try:
        socket.create_connection((host, port), timeout).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
    return "open"
