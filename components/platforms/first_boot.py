"""How long `up` waits for the SSH host key of a new machine in a cloud."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pulumi

_WAIT_SECONDS = 900
"""Maximum wait. A machine with eight GPUs can need half of this time to start."""
_LONGEST_FIRST_BOOT = timedelta(minutes=20)
"""If an older machine has not published its key, it is stopped or broken."""


def host_key_wait(created: str | None) -> int:
    """Return the maximum wait in seconds for the host key of a machine that was created at this time (RFC 3339).

    The wait begins now. In a preview, for an older machine or an unknown creation time, the wait is 0, and the key is
    read once.
    """
    if pulumi.runtime.is_dry_run() or not created:
        return 0
    return _WAIT_SECONDS if datetime.now(UTC) - datetime.fromisoformat(created) < _LONGEST_FIRST_BOOT else 0
