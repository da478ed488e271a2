"""What an SSH host key looks like, for everything that writes one into a file that ssh reads. Imports nothing else."""

from __future__ import annotations

import re

_ED25519 = r"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5[A-Za-z0-9+/]{48}"
"""An ed25519 key is 51 bytes (RFC 8709, section 4), so its base64 has 68 characters and begins alike in every key."""
_OTHER = r"(?:ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) [A-Za-z0-9+/]{64,2048}={0,2}"

HOST_KEY = re.compile(f"{_ED25519}|{_OTHER}")
"""One SSH host key, type and base64, without a comment. Existing hosts may declare keys of the older types."""
