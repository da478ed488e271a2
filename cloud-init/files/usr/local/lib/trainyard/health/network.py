"""Reads the time and open ports of other hosts, and the events that the metadata service announces."""

from __future__ import annotations

import http.client
import socket
import struct
import time
from collections.abc import Mapping

_NTP_EPOCH = 2208988800
"""Seconds from 1900 to 1970 (RFC 5905, section 6)."""
_ANSWER_BYTES = 48
_UNSYNCHRONIZED = 3


def ntp_offset(host: str, timeout: float) -> float | None:
    """Return the clock's offset from an NTP server in seconds, or None if the server sent no usable response.

    Sends one SNTP request (RFC 5905). The response is not used if the exchange took longer than one second.
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
    """Return the timestamp at an offset in an NTP packet, in seconds since 1970."""
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


METADATA = "169.254.169.254"
"""Address of the metadata service of Azure and Google Cloud (cloud-init/README.md, section "Metadata service")."""


def metadata(path: str, headers: Mapping[str, str], timeout: float, server: str = METADATA) -> str | None:
    """Return a text from the metadata service, or None if there is no response with status 200."""
    connection = http.client.HTTPConnection(server, timeout=timeout)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body.decode(errors="replace") if answer.status == http.HTTPStatus.OK else None
