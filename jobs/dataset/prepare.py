"""JSON lines to a dataset: chunks in parallel, each a file of its own, put together in order at the end.

An interrupted run leaves its finished chunks in NAME.parts, and the next one with the same input and options goes on
from there. Bad lines are reported as FILE:LINE; nothing is written when there are more of them than were allowed.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import shutil
import signal
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import DatasetError
from .files import part, replacing, write_index
from .lines import Chunk, chunks, inputs, lines_of, text_of
from .tokenizers import Tokenizer, tokenizer_named

Progress = Callable[[int, int], None]
"""Is told how many bytes of how many are done."""

_REPORTED = 20
"""Bad lines that are named; of more, only the number is told."""


@dataclass(frozen=True)
class Wish:
    """What is asked for. `key` is where a line's text is, `bad_lines` how many of them may be left out."""

    source: Path
    name: Path
    tokenizer: str
    key: str
    bad_lines: int
    chunk: int
    processes: int
    force: bool


def prepare(wish: Wish, progress: Progress) -> dict[str, Any]:
    """Make the dataset and return what NAME.json holds. Does nothing when it is there already.

    Raises DatasetError when lines are bad, the name is taken, another run is at it or the disk is full.
    """
    coder = tokenizer_named(wish.tokenizer)
    files = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in inputs(wish.source)]
    plan = {"files": [list(file) for file in files], "tokenizer": wish.tokenizer, "key": wish.key}
    if (made := _made(wish, plan)) is not None:
        return made
    todo = chunks([(name, size) for name, size, _ in files], wish.chunk)
    wish.name.parent.mkdir(parents=True, exist_ok=True)
    with _parts(part(wish.name, ".parts"), {**plan, "chunk": wish.chunk}) as folder:
        done = _all_done(wish, todo, folder, progress)
        left_out = _judge(wish, todo, done)
        facts = _join(wish.name, folder, len(todo), coder, {**plan, "left_out": left_out})
    shutil.rmtree(folder)
    return facts


def _made(wish: Wish, plan: dict[str, Any]) -> dict[str, Any] | None:
    if not part(wish.name, ".idx").exists():
        return None
    try:
        facts: dict[str, Any] = json.loads(part(wish.name, ".json").read_bytes())
    except (OSError, ValueError):
        facts = {}
    if facts.items() >= plan.items():
        return facts
    if not wish.force:
        raise DatasetError(f"{wish.name}.idx is there, made from something else", "choose another name, or --force")
    part(wish.name, ".idx").unlink()
    return None


@contextmanager
def _parts(folder: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """Hold the folder of the parts for this run alone; parts of another plan are removed from it."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(f"another run is at work in {folder}", "wait for it, or choose another name") from None
        kept = folder / "plan.json"
        text = json.dumps(plan).encode()
        if not kept.is_file() or kept.read_bytes() != text:
            for file in folder.glob("[0-9]*"):
                file.unlink()
            with replacing(kept) as new:
                new.write(text)
        yield folder


def _all_done(wish: Wish, todo: list[Chunk], folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Do what is not done yet and return every chunk's counts."""
    done = [_done(folder, chunk) for chunk in todo]
    rest = [chunk for chunk, found in zip(todo, done, strict=True) if found is None]
    total = sum(chunk.end - chunk.start for chunk in todo)
    finished = total - sum(chunk.end - chunk.start for chunk in rest)
    progress(finished, total)
    # Forked: the program may have come as files that are gone by now. Interrupts are the parent's to handle.
    with ProcessPoolExecutor(wish.processes, multiprocessing.get_context("fork"), _leave_signals) as pool:
        running = {pool.submit(do_chunk, chunk, folder, wish.tokenizer, wish.key): chunk for chunk in rest}
        try:
            for future in as_completed(running):
                chunk = running[future]
                done[chunk.number] = future.result()
                finished += chunk.end - chunk.start
                progress(finished, total)
        except BrokenProcessPool:
            raise DatasetError("a process was killed, probably for want of memory", "use fewer --processes") from None
        except OSError as error:
            raise DatasetError(f"{error.filename or folder}: {error.strerror}", "make room, and start again") from error
        finally:
            if not all(future.done() for future in running):
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
    return [found for found in done if found is not None]


def _leave_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _done(folder: Path, chunk: Chunk) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((folder / f"{chunk.number:06}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return found


def do_chunk(chunk: Chunk, folder: Path, tokenizer: str, key: str) -> dict[str, Any]:
    """Tokenise a chunk into files of its own and return its counts. Its .json comes last and says that all is there."""
    coder = tokenizer_named(tokenizer)
    sizes, bad, bad_count, lines = array("i"), [], 0, 0
    name = folder / f"{chunk.number:06}"
    with replacing(part(name, ".bin")) as file:
        for lines, line in enumerate(lines_of(chunk), start=1):
            text, wrong = text_of(line, key)
            if wrong:
                bad_count += 1
                bad += [(lines, wrong)] if bad_count <= _REPORTED else []
            elif text:
                tokens = coder.encode(text) + coder.end
                file.write(tokens)
                sizes.append(len(tokens) // coder.width)
    with replacing(part(name, ".sizes")) as file:
        file.write(sizes.tobytes())
    done = {"lines": lines, "bad": bad, "bad_count": bad_count}
    with replacing(part(name, ".json")) as file:
        file.write(json.dumps(done).encode())
    return done


def _judge(wish: Wish, todo: list[Chunk], done: list[dict[str, Any]]) -> int:
    """Return how many bad lines are left out. Raises DatasetError, naming them, when they are too many."""
    count = sum(int(found["bad_count"]) for found in done)
    if count <= wish.bad_lines:
        return count
    named: list[str] = []
    before, file = 0, ""
    for chunk, found in zip(todo, done, strict=True):
        before, file = (before, file) if chunk.file == file else (0, chunk.file)
        named += [f"{file}:{before + line}: {wrong}" for line, wrong in found["bad"]]
        before += found["lines"]
    more = [f"and {count - _REPORTED} more"] if count > _REPORTED else []
    listed = "\n".join(f"  {line}" for line in named[:_REPORTED] + more)
    fix = f"correct them, or leave them out with --bad-lines {count}"
    raise DatasetError(f"{count} bad lines, {wish.bad_lines} allowed; nothing was written\n{listed}", fix)


def _join(name: Path, folder: Path, count: int, coder: Tokenizer, facts: dict[str, Any]) -> dict[str, Any]:
    sizes = array("i")
    try:
        with replacing(part(name, ".bin")) as file:
            for number in range(count):
                piece = folder / f"{number:06}"
                sizes.frombytes(part(piece, ".sizes").read_bytes())
                with part(piece, ".bin").open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
        if not sizes:
            part(name, ".bin").unlink()
            raise DatasetError(f"{facts['files'][0][0]} holds no text", "name a file with documents in it")
        return write_index(name, sizes, coder, facts)
    except OSError as error:
        raise DatasetError(f"{error.filename or name}: {error.strerror}", "make room, and start again") from error
