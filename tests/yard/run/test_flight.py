"""The records of a job's nodes and steps: facts, samples, and the document that the head prints."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.yard.conftest import MakeProgram, job_of, wait_until
from trainyard.outputs import Cluster
from yard.job.placement import place
from yard.run import flight, goodput
from yard.run.script import render_record

# The line that nvidia-smi printed on a host with two H100s (driver 580.159.04, 2026-11-27).
H100 = "580.159.04, NVIDIA H100 80GB HBM3, 96.00.DA.00.0C, {power}, 1980, Enabled, Disabled, 5, 16"
BUSY = "97, 650.21, 1755, 62, 0x0000000000000004, 71234"


def test_values_that_differ_between_gpus_name_the_gpus() -> None:
    of_driver, of_gpus = flight.gpu_facts(f"{H100.format(power='700.00')}\n{H100.format(power='500.00')}\n")
    assert of_driver == {"GPU driver": "580.159.04"}
    assert (of_gpus["GPUs"], of_gpus["GPU"]) == ("2", "NVIDIA H100 80GB HBM3")
    assert of_gpus["power limit (W)"] == "700.00 (0); 500.00 (1)"
    assert flight.gpu_facts("No devices were found\n") == ({}, {})


def test_the_facts_about_a_node_are_read_from_its_files(tmp_path: Path) -> None:
    files = {
        "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n',
        "usr/local/cuda/version.json": '{"cuda" : {"name" : "CUDA SDK", "version" : "12.8.1"}}',
        "etc/trainyard/fabric.env": "# comment\nNCCL_IB_HCA=mlx5\nGLOO_SOCKET_IFNAME=eth0\n",
        "proc/cpuinfo": "processor : 0\nmodel name\t: AMD EPYC\n",
        "proc/meminfo": "MemTotal:       2097152 kB\n",
        "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002\n",
        "sys/class/infiniband/mlx5_1/fw_ver": "28.41.1000\n",
        "sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "sys/class/infiniband/mlx5_1/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "run/trainyard/health/verdict": "drain TY:gpu-xid: Xid 63\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert flight.software(tmp_path) | {"CUDA of the driver": "", "kernel": "", "Python": ""} == {
        "system": "Debian GNU/Linux 13 (trixie)",
        "kernel": "",
        "Python": "",
        "CUDA of the driver": "",
        "CUDA toolkit": "12.8.1",
        "fabric settings": "NCCL_IB_HCA=mlx5 GLOO_SOCKET_IFNAME=eth0",
    }
    found = flight.hardware(tmp_path)
    assert found["network firmware"] == "28.39.1002 (mlx5_0); 28.41.1000 (mlx5_1)"
    assert (found["network rate"], found["memory (GiB)"]) == ("400 Gb/sec (4X NDR)", "2")
    assert (found["processor"].partition(" x ")[2], found["health"]) == ("AMD EPYC", "drain TY:gpu-xid: Xid 63")
    assert set(flight.hardware(tmp_path / "empty")) == {"processor"}


def test_samples_stay_bounded_and_cover_the_whole_job(tmp_path: Path) -> None:
    samples = flight.Samples(tmp_path / "0-a.jsonl", {"node": "a"})
    most = 0
    for second in range(20_000):
        samples.add([second, 5, [[97, 650.2, 1755, 62, 4, 71234]] * 8])
        if second % 500 == 0:
            most = max(most, samples.path.stat().st_size)
    rows = [json.loads(line) for line in samples.path.read_text().splitlines()]
    times = [row[0] for row in rows[1:]]
    assert rows[0] == {"node": "a"}
    assert 360 <= len(times) <= 720
    assert (times[0], times[-1] > 19_900) == (0, True)
    assert {later - earlier for earlier, later in pairwise(times)} == {32}
    assert most < 200_000


def start(folder: Path, **more: str) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """Start a task and the program that records its node. Return both processes."""
    task = subprocess.Popen(["sleep", "60"])
    env = {**os.environ, "RUN_DIR": str(folder), "RESTART_COUNT": "20", "NODE_RANK": "0", "TASKS_PER_NODE": "2", **more}
    return task, subprocess.Popen([sys.executable, "-S", flight.__file__, "watch", str(task.pid)], env=env)


def test_a_node_is_recorded_until_its_task_ends(tmp_path: Path, program: MakeProgram) -> None:
    smi = program(
        "nvidia-smi",
        f"case $* in *driver*) printf '%s\\n' '{H100}' '{H100}' ;; *) "
        f"for i in 1 2 3; do printf '%s\\n' '{BUSY}'; sleep 0.1; echo '0, [N/A], 345, 30, 0x1, 4'; done; "
        "sleep 60 ;; esac",
    )
    (tmp_path / "flight").mkdir()
    for name in ("3-old.jsonl", "4-old.jsonl", "5-kept.jsonl"):
        (tmp_path / "flight" / name).touch()
    task, recorder = start(tmp_path, CUDA_VISIBLE_DEVICES="0,1")
    name = os.uname().nodename.partition(".")[0]
    file = tmp_path / "flight" / f"20-{name}.jsonl"
    wait_until(lambda: file.exists() and len(file.read_text().splitlines()) == 4)
    assert recorder.poll() is None
    task.kill()
    task.wait()
    assert recorder.wait(5) == 0
    facts, first, *_ = (json.loads(line) for line in file.read_text().splitlines())
    assert (facts["node"], facts["tasks"], facts["software"]["GPU driver"]) == (name, 2, "580.159.04")
    assert first[2] == [[97, 650.21, 1755, 62, 4, 71234], [0, None, 345, 30, 1, 4]]
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name, "5-kept.jsonl"]
    assert all("-i 0,1 --query-gpu" in call for call in smi.calls)


def test_a_driver_that_does_not_answer_delays_the_facts_by_two_seconds(tmp_path: Path, program: MakeProgram) -> None:
    program("nvidia-smi", "exec sleep 60")
    task, recorder = start(tmp_path)
    wait_until(lambda: list(tmp_path.glob("flight/20-*.jsonl")), 10)
    task.kill()
    task.wait()
    assert recorder.wait(5) == 0
    (file,) = tmp_path.glob("flight/*")
    assert "GPUs" not in json.loads(file.read_text())["hardware"]


@pytest.mark.engine
def test_the_first_node_shows_the_goodput_in_a_name(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "saves").mkdir(parents=True)
    shutil.copy(goodput.__file__, run / "goodput.py")
    now = time.time()
    (run / "events").write_text(f"{now - 100:.0f} saves {run}/saves\n{now - 100:.0f} start 0 a\n")
    row = {"step": 10, "steps": 10, "step_ms": 2500.0, "time": now - 1}
    (run / "saves/metrics.jsonl").write_text(json.dumps(row) + "\n")
    started = [start(run, SLURM_JOB_ID="7"), start(run), start(run, SLURM_JOB_ID="7", NODE_RANK="1")]

    def names() -> list[str]:
        return [Path(f"/proc/{recorder.pid}/comm").read_text() for _, recorder in started]

    try:
        wait_until(lambda: re.fullmatch(r"goodput 0\.2\d\d\n", names()[0]), 20)
        assert not [name for name in names()[1:] if name.startswith("goodput")]
    finally:
        for task, recorder in started:
            task.kill()
            task.wait()
            recorder.wait(5)


def step(number: int, start: int = 0, **more: Any) -> str:
    seconds = 1000 + start + number
    return json.dumps({"step": number, "steps": 1, "step_ms": 100 + number % 10, "time": seconds, "loss": 9.0, **more})


def test_long_metrics_become_few_points_and_repeated_steps_are_omitted() -> None:
    """The work is bounded: each line is read once, and the document has at most 400 points."""
    lines = [step(number) for number in range(1, 7001)] + ["{", '{"step": "x", "steps": 1}', "[]"]
    lines += [step(number, 900, loss=2.0, rank_ms=[10, 12.5]) for number in range(6001, 10_001)]
    found = flight.read_metrics(lines)
    assert (found["count"], found["median_ms"], found["rank_ms"]) == (10_000, 104.5, [10, 12.5])
    assert 300 < len(found["step"]) <= 400
    assert found["step"] == sorted(found["step"])
    assert (found["step"][-1], found["slowest_ms"][0], found["loss"][-1], found["tokens_per_s"][0]) == (
        10_000, 109, 2.0, None,
    )  # fmt: skip
    assert len(json.dumps(found)) < 40_000
    assert flight.read_metrics([])["step"] == []


def test_the_samples_of_a_gpu_are_summarised() -> None:
    facts = {"node": "a", "boot_id": "b", "start": 0}
    rows = [[second, 10, [[90, 600, 1755, 60, 4, 100], [95, 610, 1200 if second % 2 else 1210, 84, 0x60, 200]]]
            for second in range(0, 3000, 10)]  # fmt: skip
    damaged = ["{", '[1, 2, "x"]', '[1, 2, [["a", 1, 1, 1, 1, 1]]]']
    found = flight.read_node([json.dumps(facts), *map(json.dumps, rows), *damaged])
    assert found is not None
    good, bad = found["gpus"]
    assert len(found["time"]) == len(good["use"]) == 60
    assert (good["mean_use"], good["clock"], good["throttled"], good["busy"]) == (90, 1755, {}, 300)
    assert bad["throttled"] == {"software thermal limit": 300, "hardware thermal limit": 300}
    assert (bad["temperature"], bad["memory"]) == (84, 200)
    assert flight.read_node([]) is flight.read_node(["[]"]) is flight.read_node(['{"node": 1, "boot_id": "b"}']) is None


NCCL = """\
a:7:9 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
a:7:9 [0] NCCL INFO NET/Plugin: Loaded net plugin NCCL RDMA Plugin v10 (v10)
a:7:9 [0] NCCL INFO Using network IBext_v10
a:7:9 [0] NCCL INFO 16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer
a:7:9 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
"""


def test_the_head_prints_a_document_for_each_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, state = tmp_path / "train-1", tmp_path / "state"
    for folder in (run / "flight", run / "nccl", run / "save", state):
        folder.mkdir(parents=True)
    (run / "record.json").write_text('{"name": "train"}')
    (run / "snapshot.json").write_text('{"commit": "c0ffee", "modified": true, "untracked_count": 1}')
    (run / "snapshot.diff").write_text("diff --git a/train.py b/train.py\n+x\n")
    (run / "environment").write_text("/shared/envs/torch-abc\n")
    (run / "events").write_text(f"1000 saves {run}/save\n1000 start 0 a\n1200 end 0\n")
    (run / "save" / "metrics.jsonl").write_text(step(1) + "\n")
    (run / "job.log").write_text("yard: job 7, start 0, on a\nstep 1\nyard: goodput 11%\n")
    (run / "flight" / "0-a.jsonl").write_text('{"node": "a", "boot_id": "b1"}\n')
    (run / "flight" / "0-b.jsonl").write_text("damaged")
    (run / "nccl" / "a.1").write_text("an older log")
    os.utime(run / "nccl" / "a.1", (1, 1))
    (run / "nccl" / "a.7").write_text(NCCL)
    pairs = [{"nodes": ["a", "z"], "busbw": 40.0}, {"nodes": ["a"], "busbw": None}]
    alone = {"busbw": 480.5, "algorithm": "NVLS, SIMPLE"}
    pairs.append({"nodes": ["a"], "busbw": 40.0})  # by an earlier version
    group = {"boots": {"a": "b1", "z": "b2"}, "alone": {"a": alone}, "pairs": pairs, "floors": [450, None]}
    (state / "busbw.json").write_text(json.dumps({"groups": {"gpu": group}}))
    flight.main(["read", str(state), f"7={run}", f"8={tmp_path}/missing"])
    found, missing = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (found["id"], found["submitted"], found["environment"]) == (7, {"name": "train"}, "/shared/envs/torch-abc")
    assert (found["snapshot"]["changed"], found["snapshot"]["untracked"]) == (["train.py"], 1)
    assert found["messages"] == ["job 7, start 0, on a", "goodput 11%"]
    assert (found["metrics"]["count"], [node["node"] for node in found["nodes"]]) == (1, ["a"])
    assert found["nccl"]["a"] == {
        "version": "2.28.9+cuda13.0",
        "network": "IBext_v10",
        "plugin": "NCCL RDMA Plugin v10 (v10)",
        "channels": "16 coll channels, 16 collnet channels, 0 nvls channels, 16 p2p channels, 2 p2p channels per peer",
        "rings": "use ring PXN 0 GDR 1",
    }
    assert found["busbw"] == [
        {"nodes": ["a"], "busbw": 480.5, "algorithm": "NVLS, SIMPLE", "floor": 450},
        {"nodes": ["a"], "busbw": 40.0, "algorithm": "", "floor": 450},
    ]
    assert (missing["events"], missing["nodes"], missing["snapshot"]) == ([], [], {})


def test_a_submitted_job_records_what_the_user_chose(tmp_path: Path, local: Cluster) -> None:
    text = (
        "name: fine\nnodes: 2\nworkload: train.py\nlauncher: torchrun\nargs: [--lr, 1e-4]\nenv: {A: 1}\n"
        "secrets: [HF_TOKEN]\ncontainer: {image: 'nvcr.io/a:1', runtime: pyxis}\n"
    )
    job = job_of(tmp_path, text)
    found = render_record(job, place(job, local))
    assert found["arguments"] == {
        "name": "fine", "nodes": "2", "workload": "train.py", "launcher": "torchrun", "args": "--lr 1e-4",
        "secrets": "HF_TOKEN", "env A": "1", "env NCCL_IB_DISABLE": "1", "env NCCL_IBEXT_DISABLE": "1",
    }  # fmt: skip
    assert found["environment"] == {"image": "nvcr.io/a:1", "runtime": "pyxis"}
    assert found["placement"]["nodes"] == "2"
    assert list(found["files"]) == ["train.py"]


def test_traffic_of_all_cards_is_added(tmp_path: Path) -> None:
    (tmp_path / "proc/net").mkdir(parents=True)
    columns = " ".join(["0"] * 7)
    lines = [f"lo: 9 {columns} 9 {columns}", f"eth0: 100 {columns} 20 {columns}", f"eth1: 3 {columns} 4 {columns}"]
    (tmp_path / "proc/net/dev").write_text("Inter-|\n face |\n" + "\n".join(lines) + "\n")
    counters = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_rcv_data").write_text("1000\n")
    (counters / "port_xmit_data").write_text("2000\n")
    assert flight.traffic(tmp_path) == (4103, 8024)
    assert flight.traffic(tmp_path / "missing") == (0, 0)


def test_the_gpus_next_to_a_lost_one_are_summarised() -> None:
    good = [97, 650.2, 1755, 62, 4, 71234]
    lines = [b"97, 650.2, 1755, 62, 0x4, 71234", b"Unable to determine the device handle for GPU0000:3B:00.0"]
    head = json.dumps({"boot_id": "b", "node": "a"})
    rows = [[1, 5, [good, good]], *([second, 5, flight.sample_of(lines)] for second in (2, 3))]
    found = flight.read_node([head, *map(json.dumps, rows)])
    assert found is not None
    assert found["gpus"][0]["use"] == [97, 97, 97]
    assert found["gpus"][1]["use"] == [97, None, None]


def test_samples_without_traffic_are_read() -> None:
    """An earlier version has written three values."""
    head = json.dumps({"boot_id": "b", "node": "a"})
    found = flight.read_node([head, "[1, 5, []]", "[2, 7, [], [1.0, 2.0]]"])
    assert found is not None
    assert found["cpu"] == [5, 7]
