"""Explains why a job's ranks make no progress. yard uploads this file with each job. It needs Python 3.10 or newer.

Two commands run on each of the job's nodes: `hang.py dump RUN_DIR MARK` lets ranks that use NCCL through PyTorch write
the dumps of PyTorch's flight recorder, and `hang.py stacks MARK TIME` then ends the ranks, which print the stacks of
their threads. Afterwards, `hang.py explain RUN_DIR START` prints a summary on one node.

The stacks come from Python's faulthandler, which PYTHONFAULTHANDLER enables. On SIGABRT, it writes the stacks to stderr
without the GIL, so that also a rank in a NCCL call prints its stack (seen with Python 3.12.3 on 2026-11-27). The ranks
of a node are stopped first, because a launcher ends the other ranks when one rank has ended.

A dump contains a process group's last collectives (getCollectiveTrace in torch/csrc/distributed/c10d/FlightRecorder.cpp
at pytorch/pytorch 00f0e2f6, read 2026-11-27). PyTorch writes it if a collective exceeds its timeout, or if a character
is written to the pipe TORCH_NCCL_DEBUG_INFO_PIPE_FILE + RANK + ".pipe" (seen with PyTorch 2.11 on 2026-11-27).
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = "hang"
"""The subfolder of the run folder for dumps and pipes."""
DUMP, PIPE = "dump-", "pipe-"
"""Prefixes of the dumps and pipes in the subfolder. The rank follows, and for a pipe the suffix .pipe."""
_DUMP_WAIT_SECONDS = 40.0
"""Maximum time in which a rank writes its dump. It took 8 s on a machine with 2 H100 and PyTorch 2.11 on 2026-11-27,
because PyTorch imports torch._dynamo first."""
_STACK_SECONDS = 3.0
"""Maximum time in which a rank prints its stacks and ends."""
_MOST_RANGES = 8
_LOG_BYTES = 4 * 1024 * 1024
"""How much of the end of each log is searched for stacks."""
_MARK = re.compile(r"^yard: rank (\d+) in start (\d+), process \d+ on \S+: (.*)$")
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python3|^<")


@dataclass(frozen=True)
class Rank:
    """The process of a rank. `start` counts the job's starts, and `began` is in clock ticks after boot."""

    number: int
    start: int
    pid: int
    began: int
    state: str


@dataclass(frozen=True)
class Frame:
    """A function on a stack."""

    file: str
    line: int
    function: str

    @property
    def is_library(self) -> bool:
        return _LIBRARY.search(self.file) is not None

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


def find_ranks(mark: str, proc: Path = Path("/proc")) -> tuple[list[Rank], list[int]]:
    """Return the ranks on this node, and the PIDs of all Python processes with `mark` (NAME=VALUE) in the environment.

    Ranks that torchrun has started have TORCHELASTIC_RUN_ID in their environment, and torchrun itself does not. A
    rank's child processes, such as data loaders, have the same RANK, and a later start.
    """
    found: dict[tuple[int, bool], Rank] = {}
    pids = []
    for folder in proc.glob("[0-9]*"):
        # Reading fails if the process belongs to another user or has ended.
        with suppress(OSError, ValueError):
            variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            program = Path(os.readlink(folder / "exe")).name
            if mark not in variables or not program.startswith("python") or int(folder.name) == os.getpid():
                continue
            pids.append(int(folder.name))
            values = dict(text.partition("=")[::2] for text in variables)
            if "RANK" not in values:
                continue
            number, is_elastic = int(values["RANK"]), "TORCHELASTIC_RUN_ID" in values
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            start = int(values.get("RESTART_COUNT", 0))
            rank = Rank(number, start, int(folder.name), int(fields[19]), fields[0])
            key = (number, is_elastic)
            found[key] = min(rank, found.get(key, rank), key=lambda other: other.began)
    by_torchrun = {number for number, is_elastic in found if is_elastic}
    ranks = [rank for (_, is_elastic), rank in found.items() if is_elastic or not by_torchrun]
    return sorted(ranks, key=lambda rank: rank.number), pids


def write_dumps(run_dir: Path, mark: str) -> None:
    """Let the ranks on this node write their dumps, and wait for them."""
    ranks, _ = find_ranks(mark)
    asked = [rank.number for rank in ranks if _ask(run_dir / FOLDER / f"{PIPE}{rank.number}.pipe")]
    deadline = time.monotonic() + _DUMP_WAIT_SECONDS
    while time.monotonic() < deadline and not all(_has_dump(run_dir, number) for number in asked):
        time.sleep(0.1)


def print_stacks(mark: str, at: float) -> None:
    """Stop the ranks on this node and, at the time `at` in seconds since 1970, let them print their stacks and end.

    All nodes begin to end their ranks at the same time, because a launcher that learns of an ended rank ends the
    others. Launchers are left stopped.
    """
    ranks, pids = find_ranks(mark)
    if not ranks:
        return
    for pid in pids:
        _send(pid, signal.SIGSTOP)
    time.sleep(max(0.0, min(at - time.time(), 10.0)))
    # Ranks that share a log print one after another, so that their stacks do not mix.
    queues: dict[str, list[Rank]] = defaultdict(list)
    for rank in ranks:
        with suppress(OSError):
            queues[os.readlink(f"/proc/{rank.pid}/fd/2")].append(rank)
    while queues:
        batch = [queue.pop(0) for queue in queues.values()]
        queues = defaultdict(list, {log: queue for log, queue in queues.items() if queue})
        for rank in batch:
            _announce(rank)
            _send(rank.pid, signal.SIGABRT)
            _send(rank.pid, signal.SIGCONT)
        deadline = time.monotonic() + _STACK_SECONDS
        while time.monotonic() < deadline and any(_state(rank.pid) not in {"", "Z", "X"} for rank in batch):
            time.sleep(0.02)


def _ask(pipe: Path) -> bool:
    """Ask a rank for its dump. Return whether the rank listens."""
    # Without O_NONBLOCK, opening a pipe without a reader would block.
    with suppress(OSError):
        file = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        try:
            return os.write(file, b"1") == 1
        finally:
            os.close(file)
    return False


def _has_dump(run_dir: Path, number: int) -> bool:
    with suppress(OSError):
        return (run_dir / FOLDER / f"{DUMP}{number}").stat().st_size > 0
    return False


def _announce(rank: Rank) -> None:
    """Print a line before the rank's stacks, in the rank's own log if possible."""
    state = {"T": "was stopped before", "D": f"waits in the kernel{_waits_in(rank.pid)}"}.get(rank.state, "stacks:")
    place = f"rank {rank.number} in start {rank.start}, process {rank.pid} on {os.uname().nodename}"
    line = f"\nyard: {place}: {state}\n".encode()
    try:
        # This fails if stderr is a socket.
        with open(f"/proc/{rank.pid}/fd/2", "ab", buffering=0) as log:
            log.write(line)
    except OSError:
        os.write(2, line)


def _waits_in(pid: int) -> str:
    with suppress(OSError):
        name = Path(f"/proc/{pid}/wchan").read_text()
        return f" ({name})" if name not in {"", "0"} else ""
    return ""


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def parse_stacks(text: str, start: int) -> Iterator[tuple[int, str, list[Frame]]]:
    """Yield the rank, its process's state and the stack of its main thread, from the end of a log."""
    number: int | None = None
    state = ""
    frames: list[Frame] = []
    for line in text.splitlines():
        if mark := _MARK.match(line):
            if number is not None:
                yield number, state, frames
            # The log also contains the stacks of earlier starts.
            number = int(mark[1]) if int(mark[2]) == start else None
            state, frames = mark[3], []
        elif _THREAD.match(line):
            # The main thread is the oldest one, and faulthandler prints it last.
            frames = []
        elif found := _FRAME.match(line):
            frames.append(Frame(found[1], int(found[2]), found[3]))
    if number is not None:
        yield number, state, frames


def place(state: str, frames: Sequence[Frame]) -> str:
    """Describe where a rank is: the innermost function, and the program's function that has called it."""
    if not frames:
        return "its process " + (state if state != "stacks:" else "printed no Python stack")
    suffix = "" if state == "stacks:" else f"; its process {state}"
    own = next((frame for frame in frames if not frame.is_library), None)
    if own is None or own is frames[0]:
        return f"in {frames[0]}{suffix}"
    # Wrappers, such as PyTorch's loggers, are between a collective and the program.
    called = frames[frames.index(own) - 1]
    inner = f"in {frames[0]}" if called is frames[0] else f"in {frames[0]}, in {called.function}"
    return f"{inner}, called from {own}{suffix}"


def describe_stacks(stacks: Mapping[int, str]) -> list[str]:
    """Return a line for each different place with its ranks. The place with the fewest ranks is first."""
    places: dict[str, list[int]] = defaultdict(list)
    for number in sorted(stacks):
        places[stacks[number]].append(number)
    return [
        f"{ranks_text(numbers)}: {where}"
        for where, numbers in sorted(places.items(), key=lambda item: (len(item[1]), item[1]))
    ]


def describe_dumps(dumps: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return a line for each process group with a collective that some ranks have called and others have not.

    `dumps` maps ranks to dumps. Completed collectives, and messages between two ranks, are ignored.
    """
    calls: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    members: dict[str, list[int]] = {}
    for number, dump in dumps.items():
        for group in dump.get("pg_config", {}).values():
            with suppress(KeyError, ValueError):
                members[str(group["name"])] = [int(word) for word in re.findall(r"\d+", str(group["ranks"]))]
        for entry in dump.get("entries", ()):
            if not entry.get("is_p2p"):
                # The entries are in the order of the calls, so the last one remains.
                calls[str(entry["process_group"][0])][number] = entry
    lines = []
    for group, last in sorted(calls.items()):
        newest = max(entry["collective_seq_id"] for entry in last.values())
        inside = {number: entry for number, entry in last.items() if entry["collective_seq_id"] == newest}
        if all(entry["state"] == "completed" for entry in inside.values()):
            continue
        names = {number: _call(entry) for number, entry in inside.items()}
        missing = [number for number in members.get(group, sorted(last)) if number not in inside]
        first = names[min(names)]
        title = f"process group {group}: {ranks_text(sorted(inside))} called {first} (number {newest})"
        if missing:
            lines.append(f"{title}; missing: {ranks_text(missing)}{_last_calls(missing, last)}")
        elif others := {number: name for number, name in names.items() if name != first}:
            listed = "; ".join(f"rank {number} called {name}" for number, name in sorted(others.items()))
            lines.append(
                f"process group {group}: different calls (number {newest}): rank {min(names)} called {first}; {listed}"
            )
        else:
            lines.append(f"{title}, and none has completed it: a network or GPU fault, or a slow rank")
    return lines


def _last_calls(missing: Sequence[int], last: Mapping[int, Mapping[str, Any]]) -> str:
    known = {
        f"{_call(last[number])} (number {last[number]['collective_seq_id']})" for number in missing if number in last
    }
    return f", whose last call was {known.pop()}" if len(known) == 1 else ""


def _call(entry: Mapping[str, Any]) -> str:
    name = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    return f"{name} of {entry['input_sizes']}"


def ranks_text(numbers: Sequence[int]) -> str:
    """Return for example "rank 3" or "ranks 0-2, 5", with at most eight ranges."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in parts]
    if len(texts) > _MOST_RANGES:
        texts[_MOST_RANGES:] = [f"and {len(texts) - _MOST_RANGES} more"]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(texts)}"


class _Plain(pickle.Unpickler):
    """Reads only lists, dictionaries, strings and numbers, which are all that a dump contains."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def read_dumps(folder: Path) -> dict[int, Mapping[str, Any]]:
    """Return a mapping from rank to dump. Incomplete dumps are skipped."""
    dumps: dict[int, Mapping[str, Any]] = {}
    for path in folder.glob(f"{DUMP}[0-9]*"):
        with suppress(OSError, ValueError, EOFError, pickle.UnpicklingError), path.open("rb") as file:
            dump = _Plain(file).load()
            if isinstance(dump, dict):
                dumps[int(path.name.removeprefix(DUMP))] = dump
    return dumps


def explain(run_dir: Path, start: int) -> list[str]:
    """Return the lines of the summary. The list is empty if the start has left no stacks and no dumps."""
    stacks: dict[int, str] = {}
    for path in [run_dir / "job.log", *run_dir.glob("rank-*.log")]:
        with suppress(OSError), path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_BYTES))
            for number, state, frames in parse_stacks(log.read().decode(errors="replace"), start):
                stacks[number] = place(state, frames)
    with suppress(LookupError, TypeError):  # the format of a later PyTorch
        return describe_stacks(stacks) + describe_dumps(read_dumps(run_dir / FOLDER))
    return describe_stacks(stacks)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["dump", folder, mark]:
            write_dumps(Path(folder), mark)
        case ["stacks", mark, at]:
            print_stacks(mark, float(at))
        case ["explain", folder, start]:
            for line in explain(Path(folder), int(start)):
                print(f"yard: {line}")  # noqa: T201  (the job's log)
