"""Reads the end date of OpenSSH certificates."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable
from pathlib import Path

_PARTS = {"ssh-ed25519": 1, "ssh-rsa": 2, "ecdsa-sha2-nistp256": 2, "ecdsa-sha2-nistp384": 2, "ecdsa-sha2-nistp521": 2}
_PARTS |= {"sk-ssh-ed25519": 2, "sk-ecdsa-sha2-nistp256": 3}
"""The number of strings that encode a public key, by its type (openssh-portable@12fe929b: PROTOCOL.certkeys and
PROTOCOL.u2f; read 2026-11-26)."""


def valid_before(certificate: str) -> int:
    """Return when a certificate (the text of a -cert.pub file) ends, in seconds since 1970. Raises ValueError."""
    kind, _, rest = certificate.partition("-cert-v01@openssh.com ")
    if kind not in _PARTS or not rest:
        raise ValueError("not an OpenSSH certificate")
    # binascii.Error is a ValueError.
    content = base64.b64decode(rest.split()[0], validate=True)
    at = 0

    def number(size: int) -> int:
        nonlocal at
        at += size
        if at > len(content):
            raise ValueError("a truncated certificate")
        return int.from_bytes(content[at - size : at], "big")

    def skip_string() -> None:
        nonlocal at
        length = number(4)  # `at += number(4)` would read `at` before the call changes it
        at += length

    for _ in range(2 + _PARTS[kind]):  # the type, the nonce and the public key
        skip_string()
    number(8)  # the serial number
    number(4)  # whether the certificate is for a user or a host
    skip_string()  # the key id
    skip_string()  # the principals
    number(8)  # the begin
    return number(8)


def expiry(files: Iterable[Path]) -> str | None:
    """Return a sentence about the first of the -cert.pub files that has expired, or None."""
    for file in files:
        try:
            end = valid_before(file.read_text())
        except (OSError, ValueError):
            continue
        if end <= time.time():
            return f"the SSH certificate {file} expired on {time.strftime('%Y-%m-%d', time.gmtime(end))}"
    return None
