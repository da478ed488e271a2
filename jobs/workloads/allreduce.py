"""All-reduce benchmark in the shape of nccl-tests: one file, torch and the standard library only.

Each rank runs it with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set. NCCL where a GPU is there, Gloo
otherwise. Sizes are bytes of each rank's buffer; GB is 1e9 bytes; algbw = size / time, busbw = algbw * 2(n-1)/n
(nccl-tests doc/PERFORMANCE.md). dist.all_reduce works in place only, so the out-of-place columns stay empty.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SHORT = {"float32": "float", "bfloat16": "bfloat16", "float16": "half"}


def parse_size(text: str) -> int:
    """Return bytes of a size as nccl-tests writes them: 8, 4K, 16M, 8G. Raises ValueError."""
    digits, unit = (text, "") if text.isdigit() else (text[:-1], text[-1:].upper())
    if unit not in _UNITS or not digits.isdigit():
        raise ValueError(f"'{text}' is no size; write for example 8, 4K, 16M or 8G")
    return int(digits) * _UNITS[unit]


def sweep(begin: int, end: int, factor: int) -> Iterator[int]:
    """Yield begin, begin*factor, ... up to and including end."""
    size = begin
    while size <= end:
        yield size
        size *= factor


def busbw(size: int, seconds: float, ranks: int) -> float:
    """Return the bus bandwidth in GB/s of one all-reduce."""
    return size / seconds / 1e9 * 2 * (ranks - 1) / ranks if ranks > 1 else size / seconds / 1e9


_COLUMNS = "{:>13} {:>13} {:>8} {:>6} {:>6} {:>8} {:>7} {:>7} {:>6} {:>9} {:>7} {:>7} {:>6}"


def header() -> str:
    """Return the table's head."""
    side = ("time", "algbw", "busbw", "#wrong")
    units = ("(us)", "(GB/s)", "(GB/s)", "")
    names = _COLUMNS.format("size", "count", "type", "redop", "root", *side, *side)
    measures = _COLUMNS.format("(B)", "(elements)", "", "", "", *units, *units)
    return f"#{'':52}out-of-place{'':22}in-place\n#{names[1:]}\n#{measures[1:]}"


def row(result: dict[str, Any]) -> str:
    """Return one line of the table."""
    rates = (f"{result[key]:.2f}" for key in ("time_us", "algbw", "busbw"))
    kind = _SHORT[result["type"]]
    return _COLUMNS.format(result["size"], result["count"], kind, "sum", "-1", *"----", *rates, result["wrong"])


def rank_from_environment() -> tuple[int, int, int]:
    """Return (rank, world size, local rank) from torchrun's variables, else from Slurm's. Fills in torch's own."""
    found = []
    for ours, slurms, alone in (
        ("RANK", "SLURM_PROCID", "0"), ("WORLD_SIZE", "SLURM_NTASKS", "1"), ("LOCAL_RANK", "SLURM_LOCALID", "0"),
    ):  # fmt: skip
        os.environ.setdefault(ours, os.environ.get(slurms, alone))
        found.append(int(os.environ[ours]))
    return found[0], found[1], found[2]


class Bench:
    """One rank's side of the benchmark."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.rank, self.ranks, local = rank_from_environment()
        begin = time.perf_counter()
        # Imported here: it takes seconds, and whoever asks for --help or tests the arithmetic need not wait.
        import torch  # noqa: PLC0415
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
        self.say(f"# import torch {imported:.1f} s, "
                 f"init {time.perf_counter() - begin - imported:.1f} s")  # fmt: skip
        self.arguments = arguments
        self.dtype = getattr(torch, arguments.dtype)

    def say(self, text: str) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def wrong(self, buffer: Any) -> int:
        """Reduce known values once and return how many elements came out wrong on any rank."""
        buffer.fill_(self.rank + 1)
        self.dist.all_reduce(buffer)
        count = (buffer != self.ranks * (self.ranks + 1) // 2).sum().to(self.torch.int64)
        self.dist.all_reduce(count)
        return int(count)

    def seconds(self, buffer: Any) -> float:
        """Return the mean time of one all-reduce over `iters` enqueued back to back, averaged over ranks."""
        buffer.zero_()
        for _ in range(self.arguments.warmup):
            self.dist.all_reduce(buffer)
        self.dist.barrier()
        took = self._timed(lambda: self.dist.all_reduce(buffer)) / self.arguments.iters
        mean = self.torch.tensor([took], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(mean)
        return float(mean) / self.ranks

    def _timed(self, enqueue: Callable[[], object]) -> float:
        if not self.cuda:
            begin = time.perf_counter()
            for _ in range(self.arguments.iters):
                enqueue()
            return time.perf_counter() - begin
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda.synchronize()
        start.record()
        for _ in range(self.arguments.iters):
            enqueue()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def largest(self) -> int:
        """Return the largest size that fits into half of the free memory of the poorest rank."""
        if self.cuda:
            free = self.torch.cuda.mem_get_info()[0]
        else:
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        least = self.torch.tensor([free // 2], dtype=self.torch.int64, device=self.device)
        self.dist.all_reduce(least, op=self.dist.ReduceOp.MIN)
        return int(least)

    def run(self) -> list[dict[str, Any]]:
        """Measure every size and print the table as it grows."""
        element = _ELEMENT_BYTES[self.arguments.dtype]
        end = min(self.arguments.end, self.largest())
        if end < self.arguments.end:
            self.say(f"# free memory allows {end} bytes, not {self.arguments.end}")
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


def verdict(results: list[dict[str, Any]], floor: float | None) -> str | None:
    """Return what is wrong with the results, or None. The floor, GB/s, is judged at the largest size."""
    if not results:
        return "no size fits into memory"
    wrong = sum(result["wrong"] for result in results)
    if wrong:
        return f"{wrong} elements came out wrong: a link or a GPU corrupts data"
    if floor is not None and results[-1]["busbw"] < floor:
        return (
            f"busbw {results[-1]['busbw']:.2f} GB/s at {results[-1]['size']} bytes is below the floor of {floor:g} GB/s"
        )
    return None


def _floor(text: str) -> float | None:
    return float(text) if text else None


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description="all-reduce benchmark in the shape of nccl-tests")
    parser.add_argument("-b", "--begin", type=parse_size, default=8, metavar="SIZE")
    parser.add_argument("-e", "--end", type=parse_size, default=1 << 30, metavar="SIZE")
    parser.add_argument("-f", "--factor", type=int, default=2)
    parser.add_argument("--dtype", choices=sorted(_ELEMENT_BYTES), default="float32")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--iters", type=int, default=20)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--min-busbw", type=_floor, metavar="GB/s", help="exit 1 below this; empty: no floor")
    chosen = parser.parse_args(arguments)
    if chosen.factor <= 1 or chosen.iters < 1 or chosen.warmup < 0:
        parser.error("-f must be at least 2, --iters at least 1 and --warmup not negative")
    if chosen.begin > chosen.end:
        parser.error(f"-b {chosen.begin} is above -e {chosen.end}; begin at or below the end")
    return chosen


def main() -> NoReturn:
    """Run the benchmark. Exits with 1 when data came out wrong or the floor was missed."""
    arguments = parse()
    bench = Bench(arguments)
    results = bench.run()
    if results:
        average = sum(result["busbw"] for result in results) / len(results)
        bench.say(f"# Out of bounds values : {sum(result['wrong'] for result in results)}")
        bench.say(f"# Avg bus bandwidth    : {average:.4f}")
        if arguments.json and bench.rank == 0:
            report = {
                "ranks": bench.ranks,
                "backend": bench.dist.get_backend(),
                "avg_busbw": average,
                "results": results,
            }
            with open(arguments.json, "w") as file:
                json.dump(report, file, indent=1)
    problem = verdict(results, arguments.min_busbw)
    if problem:
        bench.say(f"FAILED: {problem}")
    leave(bench.dist, 1 if problem else 0)


def leave(dist: Any, code: int) -> NoReturn:
    """End this rank once all have come so far.

    Gloo's destructor joins its threads while it holds the interpreter's lock, which one of them may be waiting for: a
    rank then hangs after its work is done (seen with torch 2.6). So a Gloo rank ends without it.
    """
    dist.barrier()
    if dist.get_backend() == "nccl":
        dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
