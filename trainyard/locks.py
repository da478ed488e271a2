"""Lock files of root's programs.

This module is part of the bundle, so it is limited to Python 3.10 and the standard library.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path, mode: int) -> Iterator[None]:
    """Hold a lock, and wait for it if necessary. `mode` is fcntl.LOCK_SH or fcntl.LOCK_EX.

    Only the file's owner can read it, because every user who can read a file can also lock it.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        # Former versions created readable files.
        os.fchmod(file, 0o600)
        fcntl.flock(file, mode)
        yield
    finally:
        os.close(file)
