"""The format of an SSH host key. It is checked before a host key is written to a known_hosts file."""

from __future__ import annotations

import re

_ED25519 = r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5[A-Za-z0-9+/]{48}"
"""An ed25519 key has 51 bytes (RFC 8709, section 4), so its base64 has 68 characters. The first 20 characters are
constant.
"""
_OTHER = r"(?:ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) [A-Za-z0-9+/]{64,2048}={0,2}"

HOST_KEY = re.compile(f"{_ED25519}|{_OTHER}")
"""The type and the base64 of an SSH host key, without a comment. Existing hosts can have keys of older types."""
