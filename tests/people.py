"""People for tests, with keys in the right format, and the keys in a hand-over."""

from __future__ import annotations

import base64
from typing import Any

from components.node.handover import Secrets

HANDED_OVER = Secrets(
    munge_key="bXVuZ2U=",
    cluster_key="cluster",
    cluster_certificate="certificate",
    database_password="SECRETOFTHEDATABASE",  # noqa: S106  (not a real password)
    authority_public="ssh-ed25519 AAAAauthority",
    admin_public="ssh-ed25519 AAAAadmin",
    cluster_public="ssh-ed25519 AAAAcluster",
    user_public="ssh-ed25519 AAAAuser user@yard\n",
)
"""Keys for hand-overs in tests. They are not real."""


def public_key(letter: str) -> str:
    """Return an ed25519 public key that consists of this letter. No private key is known."""
    kind = b"ssh-ed25519"
    wire = len(kind).to_bytes(4, "big") + kind + (32).to_bytes(4, "big") + letter.encode() * 32
    return f"ssh-ed25519 {base64.b64encode(wire).decode()} {letter}@laptop"


def person(name: str, **more: Any) -> dict[str, Any]:
    """Return an entry of `users:`. Its key depends on the first letter of the name."""
    return {"name": name, "ssh_keys": [public_key(name[0])], **more}
