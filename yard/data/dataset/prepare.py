"""Converts JSON lines to a dataset. Chunks are tokenized in parallel into separate files, which are joined in order.

The finished chunks of an interrupted run remain in NAME.parts. The next run with the same input and options continues
from them.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import shutil
import signal
from argparse import Namespace
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import DatasetError
from .files import part, read_json, replacing, write_index
from .lines import Chunk, chunks, inputs, lines_of, text_of
from .tokenizers import Tokenizer, tokenizer_named

Progress = Callable[[int, int], None]
"""Reports progress. The arguments are the number of processed bytes and the total number of bytes."""

_REPORTED_LINES = 20


def prepare(options: Namespace, progress: Progress) -> dict[str, Any]:
    """Write the dataset if it does not exist yet, and return the facts in NAME.json.

    `options`: the parsed command line. Raises DatasetError if too many lines are bad, or if the name belongs to another
    dataset or run.
    """
    coder = tokenizer_named(options.tokenizer)
    files = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in inputs(options.source)]
    plan = {"files": [list(file) for file in files], "tokenizer": options.tokenizer, "key": options.key}
    if (made := _existing(options, plan)) is not None:
        return made
    todo = chunks([(name, size) for name, size, _ in files], options.chunk)
    options.name.parent.mkdir(parents=True, exist_ok=True)
    with _parts(part(options.name, ".parts"), {**plan, "chunk": options.chunk}) as folder:
        done = _all_done(options, todo, folder, progress)
        left_out = _skipped_lines(options, todo, done)
        facts = _join(options.name, folder, len(todo), coder, {**plan, "left_out": left_out})
    shutil.rmtree(folder)
    return facts


def _existing(options: Namespace, plan: dict[str, Any]) -> dict[str, Any] | None:
    if not part(options.name, ".idx").exists():
        return None
    facts = read_json(part(options.name, ".json"))
    if facts is not None and facts.items() >= plan.items():
        return facts
    if not options.force:
        raise DatasetError(f"{options.name}.idx exists, created from different input", "use another name, or --force")
    part(options.name, ".idx").unlink()
    return None


@contextmanager
def _parts(folder: Path, plan: dict[str, Any]) -> Iterator[Path]:
    """Create and lock the folder of the parts. Remove parts that an earlier run with a different plan has left."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DatasetError(f"another run uses {folder}", "wait until it has ended, or use another name") from None
        kept = folder / "plan.json"
        text = json.dumps(plan).encode()
        if not kept.is_file() or kept.read_bytes() != text:
            for file in folder.glob("[0-9]*"):
                file.unlink()
            with replacing(kept) as new:
                new.write(text)
        yield folder


def _all_done(options: Namespace, todo: list[Chunk], folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Process the unfinished chunks, and return the counts for all chunks."""
    done = [read_json(folder / f"{chunk.number:06}.json") for chunk in todo]
    rest = [chunk for chunk in todo if done[chunk.number] is None]
    total = sum(chunk.size for chunk in todo)
    finished = total - sum(chunk.size for chunk in rest)
    progress(finished, total)
    # Processes are forked, because the package's files may already have been deleted. The parent handles interrupts.
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("fork"), _reset_signals) as pool:
        running = {pool.submit(do_chunk, chunk, folder, options.tokenizer, options.key): chunk for chunk in rest}
        try:
            for future in as_completed(running):
                chunk = running[future]
                done[chunk.number] = future.result()
                finished += chunk.size
                progress(finished, total)
        except BrokenProcessPool:
            problem = "a process was killed, probably because the host ran out of memory"
            raise DatasetError(problem, "use fewer --processes") from None
        finally:
            if not all(future.done() for future in running):
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
    return [found for found in done if found is not None]


def _reset_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def do_chunk(chunk: Chunk, folder: Path, tokenizer: str, key: str) -> dict[str, Any]:
    """Tokenize a chunk into separate files and return its counts. The .json file is written last."""
    coder = tokenizer_named(tokenizer)
    sizes, bad, bad_count, lines = array("i"), [], 0, 0
    name = folder / f"{chunk.number:06}"
    with replacing(part(name, ".bin")) as file:
        for lines, line in enumerate(lines_of(chunk), start=1):
            text, wrong = text_of(line, key)
            if wrong:
                bad_count += 1
                bad += [(lines, wrong)] if bad_count <= _REPORTED_LINES else []
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


def _skipped_lines(options: Namespace, todo: list[Chunk], done: list[dict[str, Any]]) -> int:
    """Return the number of bad lines. Above the limit, raises DatasetError with the line numbers."""
    count = sum(int(found["bad_count"]) for found in done)
    if count <= options.bad_lines:
        return count
    reported: list[str] = []
    before, file = 0, ""
    for chunk, found in zip(todo, done, strict=True):
        before, file = (before, file) if chunk.file == file else (0, chunk.file)
        reported += [f"{file}:{before + line}: {wrong}" for line, wrong in found["bad"]]
        before += found["lines"]
    more = [f"and {count - _REPORTED_LINES} more"] if count > _REPORTED_LINES else []
    listed = "\n".join(f"  {line}" for line in reported[:_REPORTED_LINES] + more)
    fix = f"correct them, or skip them with --bad-lines {count}"
    raise DatasetError(f"{count} bad lines, {options.bad_lines} allowed; nothing was written\n{listed}", fix)


def _join(name: Path, folder: Path, count: int, coder: Tokenizer, facts: dict[str, Any]) -> dict[str, Any]:
    sizes = array("i")
    with replacing(part(name, ".bin")) as file:
        for number in range(count):
            piece = folder / f"{number:06}"
            sizes.frombytes(part(piece, ".sizes").read_bytes())
            with part(piece, ".bin").open("rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
    if not sizes:
        part(name, ".bin").unlink()
        raise DatasetError(f"{facts['files'][0][0]} contains no text", "use a file with documents")
    return write_index(name, sizes, coder, facts)
