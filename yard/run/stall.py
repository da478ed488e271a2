"""Waits until a job makes no progress (the key `stall_minutes` in a job file). yard sends this file with such a job.

`stall.py RUN_DIR FOLDER MINUTES` runs on the job's first node or, without a scheduler, on the head. FOLDER is the
checkpoint folder, or empty. The program prints one line and ends as soon as the job has made no progress for MINUTES.
It ends without a line if its parent process has ended. It needs Python 3.10 or newer.

Progress is new output of a rank, or a change of a heartbeat, of metrics.jsonl or of a file in the checkpoint folder.
What yard itself writes does not count. The program looks for changes, and compares no times of files with a clock,
because the clocks of the file server and of this machine can differ. It counts its looks instead of the time, because a
suspended job makes no progress either.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_POLL_SECONDS = 20.0
_DELAY_SECONDS = 60.0
"""NFS can show a change of a file a minute later."""
_TAIL = 1 << 20
_OWN = b"yard: "
"""The start of yard's lines in the logs."""
_OWN_FOLDERS = frozenset({"flight", "hang", "nccl"})
_OWN_FILES = ("job.log", "rank-", "events", "state.json", "runner.log", ".")
"""The folders, and the prefixes of the files, that yard changes in the run folder while the job runs. They only matter
if the checkpoint folder contains the run folder."""


class Progress:
    """The state of a job's files."""

    def __init__(self, run_dir: Path, folder: Path | None) -> None:
        self._run_dir, self._folder = run_dir, folder
        self._sizes: dict[Path, int] = {}
        """The sizes of the logs."""
        self._files: dict[Path, tuple[int, int]] = {}
        """The modification times and sizes of the other files."""
        self.has_changed()

    def has_changed(self) -> bool:
        """Return whether there was progress since the last call."""
        logs = [self._run_dir / "job.log", *self._run_dir.glob("rank-*.log")]
        outputs = [self._has_output(log) for log in logs]
        files = dict(self._found())
        changed = any(outputs) or files != self._files
        self._files = files
        return changed

    def _has_output(self, log: Path) -> bool:
        with suppress(OSError), log.open("rb") as file:
            size, before = os.fstat(file.fileno()).st_size, self._sizes.get(log, 0)
            self._sizes[log] = size
            begin = file.seek(max(before, size - _TAIL))
            return size < before or any(not line.startswith(_OWN) for line in file.read(size - begin).splitlines())
        return False

    def _found(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        paths = [*self._run_dir.glob("heartbeat-*"), self._run_dir / "metrics.jsonl", *self._saves()]
        for path in paths:
            with suppress(OSError):
                status = path.stat()
                yield path, (status.st_mtime_ns, status.st_size)

    def _saves(self) -> Iterator[Path]:
        # os.walk ignores folders that are removed at the same time.
        for name, folders, files in os.walk(self._folder) if self._folder is not None else ():
            if Path(name) == self._run_dir:
                folders[:] = [folder for folder in folders if folder not in _OWN_FOLDERS]
                files = [file for file in files if not file.startswith(_OWN_FILES)]  # noqa: PLW2901
            yield from (Path(name, file) for file in files)


def wait_for_stall(run_dir: Path, folder: Path | None, minutes: int) -> str:
    """Return a message when the job has stalled, or '' when the parent process has ended."""
    parent, progress, quiet = os.getppid(), Progress(run_dir, folder), 0.0
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
        quiet = 0.0 if progress.has_changed() else quiet + _POLL_SECONDS
        if quiet >= 60 * minutes + _DELAY_SECONDS:
            return f"no output, heartbeat, metrics or checkpoint for {minutes} minutes (stall_minutes)"
    return ""


if __name__ == "__main__":
    print(wait_for_stall(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None, int(sys.argv[3])))  # noqa: T201
