"""The explanation of ranks that make no progress."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.yard.conftest import wait_until
from yard.run import hang

PROGRAM = """\
import os, sys, time

def load_batch():
    time.sleep(100)

def step():
    print("up", flush=True)
    load_batch() if os.environ["RANK"] == "1" else time.sleep(100)

step()
"""
STACKS = """\
step 4
yard: rank 1 in start 0, process 8 on n: stacks:
Fatal Python error: Aborted

Thread 0x00007f0000000000 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 1 in wait
  File "/usr/lib/python3.12/threading.py", line 2 in _bootstrap

Thread 0x00007f000dc08140 [python3] (most recent call first):
  File "/x/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3007 in all_reduce
  File "/x/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", line 81 in wrapper
  File "/shared/jobs/7/code/train.py", line 12 in step
  File "/shared/jobs/7/code/train.py", line 20 in <module>

Extension modules: torch._C (total: 26)
yard: rank 1 in start 1, process 9 on n: was stopped before
"""


def entry(number: int, state: str = "completed", name: str = "nccl:all_reduce", size: int = 4) -> dict[str, Any]:
    return {
        "process_group": ("0", "default_pg"), "collective_seq_id": number, "profiling_name": name, "state": state,
        "input_sizes": ((size,),), "is_p2p": False,
    }  # fmt: skip


def record(*entries: dict[str, Any], ranks: str = "[0, 1, 2, 3]") -> dict[str, Any]:
    return {"pg_config": {"0": {"name": "0", "ranks": ranks}}, "entries": list(entries)}


def test_stacks_name_the_main_threads_functions() -> None:
    ((number, state, frames),) = hang.parse_stacks(STACKS, 0)
    assert (number, state) == (1, "stacks:")
    where = hang.place(state, frames)
    assert (
        where == "in all_reduce (distributed/distributed_c10d.py:3007), in wrapper, called from step (code/train.py:12)"
    )


def test_stacks_of_other_starts_are_ignored() -> None:
    ((number, state, frames),) = hang.parse_stacks(STACKS, 1)
    assert (number, hang.place(state, frames)) == (1, "its process was stopped before")
    assert list(hang.parse_stacks(STACKS, 2)) == []


def test_rarest_place_comes_first() -> None:
    stacks = {0: "in all_reduce", 1: "in all_reduce", 2: "in load", 3: "in all_reduce"}
    assert hang.describe_stacks(stacks) == ["rank 2: in load", "ranks 0-1, 3: in all_reduce"]


def test_missing_rank_is_named() -> None:
    waits = record(entry(6), entry(7, "started"))
    (line,) = hang.describe_dumps({0: waits, 1: waits, 2: waits, 3: record(entry(6))})
    assert line == (
        "process group 0: ranks 0-2 called all_reduce of ((4,),) (number 7); missing: rank 3, whose last call was "
        "all_reduce of ((4,),) (number 6)"
    )


def test_rank_without_a_record_is_missing() -> None:
    (line,) = hang.describe_dumps({0: record(entry(7, "started"), ranks="[0, 1]")})
    assert line.endswith("missing: rank 1")


def test_different_calls_are_named() -> None:
    others = record(entry(7, "started", "nccl:all_gather"), ranks="[0, 1]")
    calls = {0: record(entry(7, "started"), ranks="[0, 1]"), 1: others}
    (line,) = hang.describe_dumps(calls)
    assert line.endswith("rank 0 called all_reduce of ((4,),); rank 1 called all_gather of ((4,),)")
    assert "different calls" in line


def test_collective_that_all_ranks_have_called_is_no_missing_rank() -> None:
    (line,) = hang.describe_dumps({rank: record(entry(7, "started")) for rank in range(4)})
    assert "none has completed it" in line


def test_completed_collectives_are_no_hang() -> None:
    assert hang.describe_dumps({0: record(entry(7)), 1: record(entry(7))}) == []


def test_records_cannot_run_code(tmp_path: Path) -> None:
    (tmp_path / "dump-0").write_bytes(pickle.dumps(record(entry(1))))
    (tmp_path / "dump-1").write_bytes(pickle.dumps(os.getcwd))
    (tmp_path / "dump-2").write_bytes(b"\x80")
    assert list(hang.read_dumps(tmp_path)) == [0]


def test_recorded_hang_of_real_ranks_is_explained(tmp_path: Path) -> None:
    """Two ranks on two H100 with PyTorch 2.11.0, of which rank 1 slept before its fourth all-reduce (2026-11-27)."""
    for rank, content in json.loads((Path(__file__).parent / "flight_recorder_dumps.json").read_text()).items():
        (tmp_path / f"dump-{rank}").write_bytes(pickle.dumps(content))
    assert hang.describe_dumps(hang.read_dumps(tmp_path)) == [
        "process group 0: rank 0 called all_reduce of [[1024]] (number 4); missing: rank 1, whose last call was "
        "all_reduce of [[1024]] (number 3)"
    ]


def test_each_rank_prints_its_stack_and_ends(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ranks = []
    for rank in range(3):
        environment = {**os.environ, "RUN_DIR": str(tmp_path), "RANK": str(rank), "PYTHONFAULTHANDLER": "1"}
        # Ranks 1 and 2 share a log.
        with (tmp_path / ("rank-1.log" if rank else "job.log")).open("ab") as log:
            line = [sys.executable, "program.py"]
            ranks.append(subprocess.Popen(line, cwd=tmp_path, env=environment, stdout=log, stderr=log))
    shared = tmp_path / "rank-1.log"
    wait_until(lambda: shared.read_text() == "up\nup\n" and (tmp_path / "job.log").read_text() == "up\n")
    begin = time.monotonic()
    shutil.copy(hang.__file__, tmp_path)
    subprocess.run(
        [sys.executable, str(tmp_path / "hang.py"), "stacks", f"RUN_DIR={tmp_path}", "0"], check=True, timeout=30
    )
    assert [rank.wait(5) for rank in ranks] == [-6, -6, -6]
    assert time.monotonic() - begin < hang._STACK_SECONDS
    assert hang.explain(tmp_path, 0) == [
        f"rank 1: in load_batch ({tmp_path.name}/program.py:4)",
        f"ranks 0, 2: in step ({tmp_path.name}/program.py:8)",
    ]


def test_only_the_ranks_of_torchrun_are_ranks(tmp_path: Path) -> None:
    """torchrun and data loaders have a RANK too."""

    def process(pid: int, began: int, *variables: str) -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        (folder / "environ").write_text("\0".join(("RUN_DIR=/r", *variables, "")))
        (folder / "exe").symlink_to("/usr/bin/python3.12")
        (folder / "stat").write_text(f"{pid} (python3) " + " ".join(["S", *["0"] * 18, str(began), "0"]))

    process(10, 100, "RANK=0")
    process(11, 200, "RANK=0", "TORCHELASTIC_RUN_ID=7")
    process(12, 201, "RANK=1", "TORCHELASTIC_RUN_ID=7", "RESTART_COUNT=2")
    process(13, 300, "RANK=1", "TORCHELASTIC_RUN_ID=7", "RESTART_COUNT=2")
    (tmp_path / "10" / "environ").write_text("RUN_DIR=/r\0RANK=0\0")
    ranks, pids = hang.find_ranks("RUN_DIR=/r", tmp_path)
    assert [(rank.number, rank.start, rank.pid) for rank in ranks] == [(0, 0, 11), (1, 2, 12)]
    assert sorted(pids) == [10, 11, 12, 13]


def test_a_listening_rank_writes_its_dump(tmp_path: Path) -> None:
    (tmp_path / "hang").mkdir()
    pipe = tmp_path / "hang" / "pipe-1.pipe"
    os.mkfifo(pipe)
    program = f"import sys; sys.stdin.read(1); open({str(tmp_path / 'hang' / 'dump-1')!r}, 'w').write('x')"
    environment = {**os.environ, "RUN_DIR": str(tmp_path), "RANK": "1"}
    reader = os.open(pipe, os.O_RDWR)
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=reader) as rank:
        wait_until(lambda: [found.pid for found in hang.find_ranks(f"RUN_DIR={tmp_path}")[0]] == [rank.pid])
        begin = time.monotonic()
        hang.write_dumps(tmp_path, f"RUN_DIR={tmp_path}")
        assert time.monotonic() - begin < hang._DUMP_WAIT_SECONDS
    os.close(reader)
    assert (tmp_path / "hang" / "dump-1").read_text() == "x"
