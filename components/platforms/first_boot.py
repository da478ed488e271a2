"""How long `up` waits for the SSH host key of a new machine in a cloud."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pulumi

_WAIT_SECONDS = 900
"""A machine with eight GPUs can need half of this time to start."""
_LONGEST_FIRST_BOOT = timedelta(minutes=20)
"""An older machine that has not published its key is stopped or broken."""


def host_key_wait(created: str | None) -> int:
    """Return the maximum wait in seconds for the host key of a machine that was created at this time (RFC 3339).

    The wait begins now. It is 0 in a preview, for an older machine, and for an unknown creation time: the key is then
    read once.
    """
    if pulumi.runtime.is_dry_run() or not created:
        return 0
    return _WAIT_SECONDS if datetime.now(UTC) - datetime.fromisoformat(created) < _LONGEST_FIRST_BOOT else 0
