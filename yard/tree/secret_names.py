"""Detects files that contain keys or passwords, by file name or content."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

SECRETS = (
    ".env", ".env.*", ".netrc", ".pypirc", "*.pem", "id_rsa", "id_ed25519", "id_ecdsa", "credentials.json", "*.p12",
)  # fmt: skip
_LARGEST_KEY_FILE = 256 * 1024
_PRIVATE_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:\\r|\\n|\s)+[A-Za-z0-9+/=]{40}")
"""A private key in PEM format, or as a JSON string with escaped line breaks. A program that only mentions the header
does not match."""
_NO_SECRETS = ("*.example", "*.sample", "*.template")


def looks_secret(name: str) -> bool:
    """Return whether files with this name usually contain keys or passwords."""
    base = name.rpartition("/")[2]
    return any(fnmatch(base, pattern) for pattern in SECRETS) and not any(fnmatch(base, p) for p in _NO_SECRETS)


def holds_private_key(path: Path) -> bool:
    """Return whether a small file, such as an outputs file or a service account's key file, contains a private key."""
    try:
        return (
            path.is_file() and path.stat().st_size <= _LARGEST_KEY_FILE and bool(_PRIVATE_KEY.search(path.read_bytes()))
        )
    except OSError:
        # The error is reported when the file is sent.
        return False
