"""The lock files of root's programs."""

from __future__ import annotations

import fcntl
import stat
import threading
from pathlib import Path

from trainyard.locks import locked


def test_users_cannot_open_a_lock_file(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    file.touch(0o644)  # as former versions created it
    for mode in (fcntl.LOCK_SH, fcntl.LOCK_EX):
        with locked(file, mode):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_second_holder_waits(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with locked(tmp_path / "lock", fcntl.LOCK_EX):
            order.append("second")

    with locked(tmp_path / "lock", fcntl.LOCK_SH):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
