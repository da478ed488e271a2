"""Records the git state from which a job was submitted: the commit, the changes and the untracked files.

The contents of files that look like secrets are omitted, as in `yard sync`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from yard.show import warn
from yard.tree.files import looks_secret

RECORD = "snapshot.json"
DIFF = "snapshot.diff"
MOST_BYTES = 1024 * 1024
_MOST_NAMES = 1000
_SECONDS = 30
_SHORT = 12


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A working tree's state. `diff` is the output of `git diff HEAD`, truncated if `complete` is false.

    `left_out` contains the names of changed files that look like secrets.
    """

    commit: str
    modified: bool
    diff: str
    complete: bool
    untracked: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def title(self) -> str:
        """The abbreviated commit, and whether files have changed since."""
        return self.commit[:_SHORT] + (" with changes" if self.modified else "")

    def files(self) -> dict[str, str]:
        """Return a mapping from file name to text for the files in the run folder."""
        record = {
            "commit": self.commit,
            "modified": self.modified,
            "diff_complete": self.complete,
            "untracked": self.untracked[:_MOST_NAMES],
            "untracked_count": len(self.untracked),
            "left_out": self.left_out,
        }
        return {RECORD: json.dumps(record) + "\n", **({DIFF: self.diff} if self.diff else {})}


def take_snapshot(folder: Path) -> Snapshot | None:
    """Return the state of the working tree that contains `folder`, or None if git cannot read a commit in time."""
    try:
        top, commit = _git(folder, "rev-parse", "--show-toplevel", "HEAD").split("\n")[:2]
        root = Path(top)
        changed = _names(_git(root, "diff", "--name-only", "-z", "--no-renames", "HEAD"))
        untracked = _names(_git(root, "ls-files", "-z", "--others", "--exclude-standard"))
        hidden = tuple(name for name in changed if looks_secret(name))
        diff, complete = _diff(root, hidden) if changed else ("", True)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        if isinstance(error, subprocess.TimeoutExpired):
            warn(f"yard: git did not finish within {_SECONDS} s; the job records no commit")
        return None
    if not complete:
        warn(f"yard: the diff is larger than {MOST_BYTES // 1024} KiB; the job records its beginning")
    return Snapshot(
        commit=commit,
        modified=bool(changed or untracked),
        diff=diff,
        complete=complete,
        untracked=untracked,
        left_out=hidden,
    )


def _diff(root: Path, hidden: Sequence[str]) -> tuple[str, bool]:
    """Return the diff and whether it is complete. A diff that exceeds the limit is truncated after a line."""
    # Diff programs and text filters in the user's git configuration could be slow or change the text.
    words = ["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "HEAD", "--", ":/"]
    argv = ["git", "-C", str(root), *words, *(f":(top,exclude,literal){name}" for name in hidden)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None  # noqa: S101  (stdout is a pipe; for the type checker)
        content = process.stdout.read(MOST_BYTES + 1)
        process.kill()
    if len(content) <= MOST_BYTES:
        return content.decode(errors="replace"), True
    return content[: content.rfind(b"\n", 0, MOST_BYTES) + 1].decode(errors="replace"), False


def _names(printed: str) -> tuple[str, ...]:
    return tuple(name for name in printed.split("\0") if name)


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=_SECONDS,
        check=True,
    )
    return os.fsdecode(done.stdout)
