"""People for tests, with keys in the right format."""

from __future__ import annotations

import base64
from typing import Any


def public_key(letter: str) -> str:
    """Return an ed25519 public key that consists of this letter. No private key is known."""
    kind = b"ssh-ed25519"
    wire = len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + letter.encode() * 32
    return f"ssh-ed25519 {base64.b64encode(wire).decode()} {letter}@laptop"


def person(name: str, **more: Any) -> dict[str, Any]:
    """Return an entry of `users:`. Its key depends on the first letter of the name."""
    return {"name": name, "ssh_keys": [public_key(name[0])], **more}
