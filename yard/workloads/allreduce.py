"""Measures all-reduces, and prints the results in the format of nccl-tests.

The program needs only torch and the standard library. Each rank needs RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT, or Slurm's variables, in its environment. The backend is NCCL on GPUs and Gloo on CPUs. Sizes are in bytes
per rank, and 1 GB is 1e9 bytes. algbw is size / time, and busbw is algbw * 2(n-1)/n (nccl-tests doc/PERFORMANCE.md).
The out-of-place columns are empty, because dist.all_reduce works in place.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_RANK_VARIABLES = (
    ("RANK", "SLURM_PROCID", "0"), ("WORLD_SIZE", "SLURM_NTASKS", "1"), ("LOCAL_RANK", "SLURM_LOCALID", "0"),
)  # fmt: skip
"""In each row: torch's variable, Slurm's variable, and the default value, which is correct for a single process."""
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SHORT = {"float32": "float", "bfloat16": "bfloat16", "float16": "half"}


def parse_size(text: str) -> int:
    """Convert a size such as 8, 4K, 16M or 8G to a number of bytes. Raises ValueError if it is invalid."""
    digits, unit = (text, "") if text.isdigit() else (text[:-1], text[-1:].upper())
    if unit not in _UNITS or not digits.isdigit():
        raise ValueError(f"'{text}' is not a size; use, for example, 8, 4K, 16M or 8G")
    return int(digits) * _UNITS[unit]


def sweep(begin: int, end: int, factor: int) -> Iterator[int]:
    """Yield `begin`, `begin` * `factor` and so on, as long as the size is at most `end`."""
    size = begin
    while size <= end:
        yield size
        size *= factor


def busbw(size: int, seconds: float, ranks: int) -> float:
    """Return an all-reduce's bus bandwidth in GB/s."""
    factor = 2 * (ranks - 1) / ranks if ranks > 1 else 1
    return size / seconds / 1e9 * factor


_COLUMNS = "{:>13} {:>13} {:>8} {:>6} {:>6} {:>8} {:>7} {:>7} {:>6} {:>9} {:>7} {:>7} {:>6}"


def header() -> str:
    side = ("time", "algbw", "busbw", "#wrong")
    units = ("(us)", "(GB/s)", "(GB/s)", "")
    names = _COLUMNS.format("size", "count", "type", "redop", "root", *side, *side)
    measures = _COLUMNS.format("(B)", "(elements)", "", "", "", *units, *units)
    return f"#{'':52}out-of-place{'':22}in-place\n#{names[1:]}\n#{measures[1:]}"


def repetitions(wanted: int, one: float, limit: float | None) -> int:
    """Return the number of iterations of `one` seconds that fit into `limit`, but at least 1 and at most `wanted`."""
    return wanted if limit is None or one <= 0 else max(1, min(wanted, int(limit / one)))


def row(result: dict[str, Any]) -> str:
    rates = (f"{result[key]:.2f}" for key in ("time_us", "algbw", "busbw"))
    kind = _SHORT[result["type"]]
    return _COLUMNS.format(result["size"], result["count"], kind, "sum", "-1", *"----", *rates, result["wrong"])


def rank_from_environment() -> tuple[int, int, int]:
    """Return the rank, the world size and the local rank. Slurm's variables are used if torch's are missing."""
    for name, slurm, default in _RANK_VARIABLES:
        os.environ.setdefault(name, os.environ.get(slurm, default))
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])


class Bench:
    """One rank of the benchmark."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rank, self.ranks, local = rank_from_environment()
        begin = time.perf_counter()
        import torch  # noqa: PLC0415  (takes seconds; --help does not need it)
        import torch.distributed as dist  # noqa: PLC0415

        self.torch, self.dist = torch, dist
        imported = time.perf_counter() - begin
        self.cuda = torch.cuda.is_available()
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        os.environ.setdefault("MASTER_PORT", "29500")
        if self.cuda:
            torch.cuda.set_device(local)
        self.device = torch.device("cuda", local) if self.cuda else torch.device("cpu")
        dist.init_process_group("nccl" if self.cuda else "gloo", rank=self.rank, world_size=self.ranks)
        self.say(f"# ranks {self.ranks}, backend {dist.get_backend()}, torch {torch.__version__}")
        self.say(f"# import torch {imported:.1f} s, init {time.perf_counter() - begin - imported:.1f} s")
        self.arguments = arguments
        self.dtype = getattr(torch, arguments.dtype)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def barrier(self) -> None:
        """Wait for all ranks."""
        # With NCCL, torch prints a warning if device_ids is missing.
        self.dist.barrier(device_ids=[self.device.index] if self.cuda else None)

    def wrong(self, buffer: Any) -> int:
        """Run one all-reduce of known values, and return the number of wrong elements on all ranks."""
        buffer.fill_(self.rank + 1)
        self.dist.all_reduce(buffer)
        count = (buffer != self.ranks * (self.ranks + 1) // 2).sum().to(self.torch.int64)
        self.dist.all_reduce(count)
        return int(count)

    def counts(self, buffer: Any) -> tuple[int, int]:
        """Time one all-reduce, and return how many warm-ups and how many iterations fit into `max_seconds`."""
        limit, one = self.arguments.max_seconds, 0.0
        if limit is not None:
            begin = time.perf_counter()
            self.dist.all_reduce(buffer)
            if self.cuda:
                self.torch.cuda.synchronize()
            slowest = self.torch.tensor([time.perf_counter() - begin], dtype=self.torch.float64, device=self.device)
            # All ranks must use the same number of iterations.
            self.dist.all_reduce(slowest, op=self.dist.ReduceOp.MAX)
            one = float(slowest)
        return repetitions(self.arguments.warmup, one, limit), repetitions(self.arguments.iters, one, limit)

    def seconds(self, buffer: Any) -> float:
        """Return the mean duration of an all-reduce in seconds, averaged over all ranks."""
        buffer.zero_()
        warmup, iters = self.counts(buffer)
        for _ in range(warmup):
            self.dist.all_reduce(buffer)
        self.barrier()
        if self.cuda:
            start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            self.torch.cuda.synchronize()
            start.record()
        begin = time.perf_counter()
        for _ in range(iters):
            self.dist.all_reduce(buffer)
        took = time.perf_counter() - begin
        if self.cuda:
            end.record()
            end.synchronize()
            took = start.elapsed_time(end) / 1e3
        mean = self.torch.tensor([took / iters], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(mean)
        return float(mean) / self.ranks

    def largest(self) -> int:
        """Return half of the free memory in bytes on the rank with the least free memory."""
        if self.cuda:
            free = self.torch.cuda.mem_get_info()[0]
        else:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        least = self.torch.tensor([free // 2], dtype=self.torch.int64, device=self.device)
        self.dist.all_reduce(least, op=self.dist.ReduceOp.MIN)
        return int(least)

    def run(self) -> list[dict[str, Any]]:
        """Measure all sizes, and print a row for each size."""
        element = _ELEMENT_BYTES[self.arguments.dtype]
        end = min(self.arguments.end, self.largest())
        if end < self.arguments.end:
            self.say(f"# largest size {end} bytes instead of {self.arguments.end}, limited by free memory")
        self.say(header())
        results = []
        for size in sweep(max(self.arguments.begin, element), end, self.arguments.factor):
            buffer = self.torch.empty(size // element, dtype=self.dtype, device=self.device)
            wrong = self.wrong(buffer)
            took = self.seconds(buffer)
            results.append({
                "size": size, "count": size // element, "type": self.arguments.dtype, "time_us": took * 1e6,
                "algbw": size / took / 1e9, "busbw": busbw(size, took, self.ranks), "wrong": wrong,
            })  # fmt: skip
            self.say(row(results[-1]))
        return results


def problems(results: Sequence[Mapping[str, Any]], floor: float | None) -> list[str]:
    """Return the problems with the results. `floor` is the minimum busbw in GB/s at the largest size."""
    if not results:
        return ["no size fits into memory"]
    found, last = [], results[-1]
    wrong = sum(result["wrong"] for result in results)
    if wrong:
        found.append(f"{wrong} elements are wrong: a link or a GPU corrupts data")
    if floor is not None and last["busbw"] < floor:
        found.append(f"busbw {last['busbw']:.2f} GB/s at {last['size']} bytes is below the floor of {floor:g} GB/s")
    return found


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="all-reduce benchmark with the output format of nccl-tests")
    parser.add_argument("-b", "--begin", type=parse_size, default=8, metavar="SIZE")
    parser.add_argument("-e", "--end", type=parse_size, default=1 << 30, metavar="SIZE")
    parser.add_argument("-f", "--factor", type=int, default=2)
    parser.add_argument("--dtype", choices=sorted(_ELEMENT_BYTES), default="float32")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--max-seconds", type=float, help="use fewer iterations if one size would take longer")
    parser.add_argument("--json", metavar="FILE")
    minimum = "fail if busbw is lower; empty for no minimum"
    parser.add_argument("--min-busbw", type=lambda text: float(text) if text else None, metavar="GB/s", help=minimum)
    chosen = parser.parse_args(arguments)
    if chosen.factor <= 1 or chosen.iters < 1 or chosen.warmup < 0:
        parser.error("-f must be at least 2, --iters at least 1 and --warmup not negative")
    if chosen.max_seconds is not None and not chosen.max_seconds > 0:
        parser.error("use --max-seconds greater than 0")
    if chosen.begin > chosen.end:
        parser.error(f"-b {chosen.begin} is greater than -e {chosen.end}; use a smaller -b")
    return chosen


def main() -> NoReturn:
    """Run the benchmark. The exit code is 1 if elements are wrong or the busbw is below the floor."""
    arguments = parse()
    bench = Bench(arguments)
    results = bench.run()
    if results:
        average = sum(result["busbw"] for result in results) / len(results)
        bench.say(f"# Out of bounds values : {sum(result['wrong'] for result in results)}")
        bench.say(f"# Avg bus bandwidth    : {average:.4f}")
        if arguments.json and bench.rank == 0:
            report = {"ranks": bench.ranks, "backend": bench.dist.get_backend(), "avg_busbw": average}
            with open(arguments.json, "w") as file:
                json.dump({**report, "results": results}, file, indent=1)
    found = problems(results, arguments.min_busbw)
    for problem in found:
        bench.say(f"FAILED: {problem}")
    leave(bench, 1 if found else 0)


def leave(bench: Bench, code: int) -> NoReturn:
    """Wait for all ranks, and exit without running destructors."""
    # Gloo's destructor can block forever (seen with torch 2.6), because it holds the interpreter lock while it waits
    # for its threads.
    bench.barrier()
    if bench.cuda:
        bench.dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
