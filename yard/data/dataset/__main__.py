"""`python3 -m dataset prepare|synth|verify`, which `yard data` runs on a host."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from .errors import DatasetError

_PROGRESS_SECONDS = 3.0
_INTERRUPTED = 130
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def count(text: str) -> int:
    """Return the number in a string such as 5000, 10K, 3M or 2G (powers of 1000). Raises ValueError."""
    digits, unit = (text, "") if text.isdigit() else (text[:-1], text[-1:].upper())
    if unit not in _UNITS or not digits.isdigit() or not int(digits):
        raise ValueError(text)
    return int(digits) * _UNITS[unit]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="dataset", description="token files for training")
    parser.add_argument("--leash", action="store_true", help="stop when standard input closes")
    parser.add_argument("--json", action="store_true")
    kinds = parser.add_subparsers(dest="kind", required=True)
    prepare = kinds.add_parser("prepare", help="create a dataset from JSON lines")
    prepare.add_argument("source", metavar="input", type=Path, help="a .jsonl file, or a folder of them")
    prepare.add_argument("name", type=Path)
    prepare.add_argument("--tokenizer", default="bytes", help="bytes, tiktoken:NAME or tokenizers:FILE.json")
    prepare.add_argument("--key", default="text", help="key of the text in each line")
    prepare.add_argument("--bad-lines", type=int, default=0, help="maximum number of bad lines to skip")
    prepare.add_argument("--chunk", type=count, default=32_000_000, help="bytes of input per chunk")
    prepare.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    prepare.add_argument("--force", action="store_true", help="replace an existing dataset")
    synth = kinds.add_parser("synth", help="create a synthetic dataset")
    synth.add_argument("name", type=Path)
    synth.add_argument("--tokens", type=count, default=10_000_000)
    synth.add_argument("--vocab", type=int, default=512)
    synth.add_argument("--seed", type=int, default=1)
    synth.add_argument("--force", action="store_true")
    verify = kinds.add_parser("verify", help="check a dataset")
    verify.add_argument("name", type=Path)
    verify.add_argument("--full", action="store_true", help="read every token")
    chosen = parser.parse_args(arguments)
    if chosen.name.suffix in {".bin", ".idx", ".json"}:
        chosen.name = chosen.name.with_suffix("")
    return chosen


class Meter:
    """Prints progress to stderr at most once every three seconds."""

    def __init__(self) -> None:
        self._begin, self._printed, self._first = time.monotonic(), -_PROGRESS_SECONDS, -1

    def __call__(self, done: int, total: int) -> None:
        """Print the progress. `done` and `total` are numbers of bytes."""
        now = time.monotonic() - self._begin
        if self._first < 0:
            self._first = done
            if done:
                sys.stderr.write(f"dataset: {done / 1e6:.1f} MB were finished by an earlier run\n")
        if now - self._printed < _PROGRESS_SECONDS or not total:
            return
        self._printed = now
        rate = (done - self._first) / now / 1e6 if now > 0 else 0.0
        sys.stderr.write(f"dataset: {done * 100 // total} % of {total / 1e6:.1f} MB, {rate:.1f} MB/s\n")


def work(options: argparse.Namespace) -> dict[str, Any]:
    """Run the command and return facts about the dataset. Raises DatasetError, and OSError if the disk is full."""
    # Each command imports only its own module. Importing `prepare`, which needs multiprocessing, takes 0.1 s.
    if options.kind == "synth":
        from .synth import synthesise  # noqa: PLC0415

        return synthesise(options.name, options.tokens, options.vocab, options.seed, force=options.force)
    if options.kind == "verify":
        from .verify import verify  # noqa: PLC0415

        return verify(options.name, full=options.full)
    from .prepare import prepare  # noqa: PLC0415

    return prepare(options, Meter())


def main(arguments: list[str] | None = None) -> int:
    """Run the command line. Returns the exit code, which is 1 after an error and 130 after an interrupt."""
    options = parse(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    if options.leash:
        threading.Thread(target=_watch, daemon=True).start()
    try:
        facts = work(options)
    except DatasetError as error:
        sys.stderr.write(f"dataset: {error}\n")
        return 1
    except OSError as error:
        fix = "free disk space or correct the permissions, and run the command again"
        sys.stderr.write(f"dataset: {error.filename or options.name}: {error.strerror}. Fix: {fix}.\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("dataset: interrupted; finished chunks were kept. To continue, run the same command again\n")
        return _INTERRUPTED
    text = json.dumps(facts) if options.json else _summary(options.name, facts)
    sys.stdout.write(f"{text}\n")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Ignore further signals. SIGINT and SIGHUP often arrive together, and the second signal would interrupt the
    # clean-up.
    for also in (signal.SIGINT, signal.SIGTERM):
        signal.signal(also, signal.SIG_IGN)
    raise KeyboardInterrupt


def _summary(name: Path, facts: dict[str, Any]) -> str:
    lines = [f"{name}: {facts['documents']} documents, {facts['tokens']} tokens of {facts['token_bytes']} bytes"]
    if facts.get("left_out"):
        lines.append(f"{facts['left_out']} bad lines were skipped")
    if "looked_at" in facts:
        lines.append(f"no problem found; {facts['looked_at']} tokens checked, digest {facts['digest']}")
    if facts.get("vocab"):
        lines.append(f"vocabulary {facts['vocab']}: train.py --data {name}.bin --token-bytes {facts['token_bytes']}")
    return "\n".join(lines)


def _watch() -> None:
    # os.read has no buffer. A process that is forked during a buffered read would inherit a locked buffer.
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
