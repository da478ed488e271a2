"""Names of files that usually contain keys or passwords."""

from __future__ import annotations

from fnmatch import fnmatch

SECRETS = (
    ".env", ".env.*", ".netrc", ".pypirc", "*.pem", "id_rsa", "id_ed25519", "id_ecdsa", "credentials.json", "*.p12",
)  # fmt: skip
_NO_SECRETS = ("*.example", "*.sample", "*.template")


def looks_secret(name: str) -> bool:
    """Return whether files with this name usually contain keys or passwords."""
    base = name.rpartition("/")[2]
    return any(fnmatch(base, pattern) for pattern in SECRETS) and not any(fnmatch(base, p) for p in _NO_SECRETS)
