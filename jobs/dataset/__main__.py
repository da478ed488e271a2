"""`python3 -m dataset prepare|synth|verify`: what `yard data` runs on a host."""

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
    """Return a number: 5000, 10K, 3M or 2G, in powers of ten. Raises ValueError."""
    digits, unit = (text, "") if text.isdigit() else (text[:-1], text[-1:].upper())
    if unit not in _UNITS or not digits.isdigit() or not int(digits):
        raise ValueError(text)
    return int(digits) * _UNITS[unit]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="dataset", description="token files for training")
    parser.add_argument("--leash", action="store_true", help="end when standard input does")
    parser.add_argument("--json", action="store_true")
    kinds = parser.add_subparsers(dest="kind", required=True)
    made = kinds.add_parser("prepare", help="from JSON lines")
    made.add_argument("input", type=Path, help="a .jsonl file, or a folder of them")
    made.add_argument("name", type=Path)
    made.add_argument("--tokenizer", default="bytes", help="bytes, tiktoken:NAME or tokenizers:FILE.json")
    made.add_argument("--key", default="text", help="where a line's text is")
    made.add_argument("--bad-lines", type=int, default=0, help="how many bad lines may be left out")
    made.add_argument("--chunk", type=count, default=32_000_000, help="bytes of input that a process takes at a time")
    made.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    made.add_argument("--force", action="store_true", help="replace a dataset of that name")
    new = kinds.add_parser("synth", help="from nothing")
    new.add_argument("name", type=Path)
    new.add_argument("--tokens", type=count, default=10_000_000)
    new.add_argument("--vocab", type=int, default=512)
    new.add_argument("--seed", type=int, default=1)
    new.add_argument("--force", action="store_true")
    seen = kinds.add_parser("verify", help="is it whole?")
    seen.add_argument("name", type=Path)
    seen.add_argument("--full", action="store_true", help="look at every token")
    chosen = parser.parse_args(arguments)
    if chosen.name.suffix in {".bin", ".idx", ".json"}:
        chosen.name = chosen.name.with_suffix("")
    return chosen


class Meter:
    """Says on standard error how far the work is, now and then."""

    def __init__(self) -> None:
        self._begin, self._said, self._first = time.monotonic(), -_PROGRESS_SECONDS, -1

    def __call__(self, done: int, total: int) -> None:
        """Note that `done` of `total` bytes are done."""
        now = time.monotonic() - self._begin
        if self._first < 0:
            self._first = done
            if done:
                sys.stderr.write(f"dataset: {done / 1e6:.1f} MB were done by an earlier run\n")
        if now - self._said < _PROGRESS_SECONDS or not total:
            return
        self._said = now
        rate = (done - self._first) / now / 1e6 if now > 0 else 0.0
        sys.stderr.write(f"dataset: {done * 100 // total} % of {total / 1e6:.1f} MB, {rate:.1f} MB/s\n")


def work(options: argparse.Namespace) -> dict[str, Any]:
    """Do what was asked for and return its facts. Raises DatasetError."""
    # What one kind of work imports, others need not wait for: the processes of `prepare` take a tenth of a second.
    if options.kind == "synth":
        from .synth import synthesise  # noqa: PLC0415

        return synthesise(options.name, options.tokens, options.vocab, options.seed, force=options.force)
    if options.kind == "verify":
        from .verify import verify  # noqa: PLC0415

        return verify(options.name, full=options.full)
    from .prepare import Wish, prepare  # noqa: PLC0415

    names = ("name", "tokenizer", "key", "bad_lines", "chunk", "processes", "force")
    return prepare(Wish(source=options.input, **{name: getattr(options, name) for name in names}), Meter())


def main(arguments: list[str] | None = None) -> int:
    """Run. Returns the exit code: 1 for what is wrong with files, 130 when interrupted."""
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
    except KeyboardInterrupt:
        sys.stderr.write("dataset: interrupted; what is finished was kept, and the same command goes on from there\n")
        return _INTERRUPTED
    said = json.dumps(facts) if options.json else _words(options.name, facts)
    sys.stdout.write(f"{said}\n")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    # Once: Ctrl-C often comes with a hang-up, and a second one would break into the words about the first.
    for also in (signal.SIGINT, signal.SIGTERM):
        signal.signal(also, signal.SIG_IGN)
    raise KeyboardInterrupt


def _words(name: Path, facts: dict[str, Any]) -> str:
    lines = [f"{name}: {facts['documents']} documents, {facts['tokens']} tokens of {facts['token_bytes']} bytes"]
    if facts.get("left_out"):
        lines.append(f"{facts['left_out']} bad lines were left out")
    if "looked_at" in facts:
        lines.append(f"whole, and mapped into memory; {facts['looked_at']} tokens looked at, digest {facts['digest']}")
    if facts.get("vocab"):
        lines.append(f"vocabulary {facts['vocab']}: train.py --data {name}.bin --token-bytes {facts['token_bytes']}")
    return "\n".join(lines)


def _watch() -> None:
    # Unbuffered: processes are forked meanwhile, and a buffer's lock would stay taken in them for ever.
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
