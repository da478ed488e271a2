"""Token files and checkpoint folders for train.py."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yard.workloads.train_model import Shape


def step_dir(run_dir: Path, step: int) -> Path:
    return run_dir / f"step-{step:08d}"


def is_whole(folder: Path) -> bool:
    """Return whether a checkpoint is complete. torch creates .metadata when all ranks have written their files."""
    return (folder / ".metadata").is_file()


def latest_step(run_dir: Path) -> int | None:
    """Return the step in the file `latest`, or None if that step has no complete checkpoint."""
    try:
        step = int((run_dir / "latest").read_text())
    except (FileNotFoundError, ValueError):
        return None
    return step if is_whole(step_dir(run_dir, step)) else None


def distrust(run_dir: Path, step: int) -> str:
    """Return why a checkpoint must not be loaded, or '' if it may be.

    torch unpickles .metadata, which can run code. Therefore, only this user, root and the user's own group may be able
    to write to the run directory and the checkpoint.
    """
    folder = step_dir(run_dir, step)
    for path in (run_dir, run_dir / "latest", folder, *folder.iterdir()):
        found = path.stat()
        if found.st_uid not in {os.geteuid(), 0}:
            return f"{path} belongs to uid {found.st_uid}"
        if found.st_mode & (0o002 if found.st_gid == os.getegid() else 0o022):
            return f"other users can write to {path}"
    return ""


def publish(run_dir: Path, step: int, keep: int) -> None:
    """Write `step` to `latest` atomically, and delete all checkpoints up to `step` except the last `keep` complete
    ones."""
    fresh = run_dir / "latest.new"
    with fresh.open("w") as file:
        file.write(f"{step}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(run_dir / "latest")
    older = sorted(path for path in run_dir.glob("step-????????") if int(path.name[5:]) <= step)
    kept = [path for path in older if is_whole(path)][-keep:]
    for path in set(older) - set(kept):
        shutil.rmtree(path, ignore_errors=True)


class Data:
    """The training data, which is synthetic or a memory-mapped file of unsigned token ids."""

    def __init__(self, torch: Any, options: argparse.Namespace, shape: Shape) -> None:
        self.torch, self.shape, self.seed, self.source = torch, shape, options.seed, options.data
        self.tokens, self.mask = None, (1 << 8 * options.token_bytes) - 1
        if self.source == "synthetic":
            return
        if not os.path.isfile(self.source):
            raise SystemExit(f"train: --data {self.source} is not a file. Fix: use a file of token ids, or 'synthetic'")
        count, rest = divmod(os.path.getsize(self.source), options.token_bytes)
        if rest or count < shape.seq + 1:
            raise SystemExit(
                f"train: {self.source} contains {count} tokens of {options.token_bytes} bytes and {rest} extra bytes; "
                f"a window needs {shape.seq + 1} tokens. Fix: prepare more data, or correct --token-bytes"
            )
        self.tokens = torch.from_file(
            self.source, shared=False, size=count, dtype={2: torch.int16, 4: torch.int32}[options.token_bytes]
        )

    def batch(self, step: int, batch: int, first: int, last: int) -> Any:
        """Return the rows from `first` to `last` - 1 in a step's batch. Each row has seq + 1 tokens."""
        generator = self.torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        width = self.shape.seq + 1
        if self.tokens is None:
            # Each row counts up from a random number, which the model can learn, so the loss must fall.
            start = self.torch.randint(0, self.shape.vocab, (batch, 1), generator=generator)
            return ((start + self.torch.arange(width)) % self.shape.vocab)[first:last]
        starts = self.torch.randint(0, len(self.tokens) - width + 1, (batch,), generator=generator)[first:last]
        windows = self.torch.stack([self.tokens[start : start + width] for start in starts.tolist()]).long() & self.mask
        if (largest := int(windows.max())) >= self.shape.vocab:
            raise SystemExit(
                f"train: {self.source} contains token {largest}, but the preset's vocabulary has {self.shape.vocab}. "
                "Fix: tokenise with that vocabulary, choose another preset, or correct --token-bytes"
            )
        return windows
