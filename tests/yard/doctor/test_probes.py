"""The probes, which collect facts on the hosts."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from components.catalog import Fabric
from components.node.parameters import fabric_env
from components.plan.plan import ClusterPlan
from tests.yard.conftest import FakeStack
from yard.doctor.collect import PROBES, examine
from yard.stack.load import load_stack
from yard.stack.remote import Remote

HEAD, FIRST = "yard-head", "yard-gpu-0"
SCRIPT = r"""
printf 'shm\t2\nnfs\twrite\t0\t\n'
echo ready
while read -r line && [[ $line != go ]]; do printf 'seen\t%s\n' "$line"; done
echo done
read -r _
touch "{folder}/left-$$"
"""


def test_hosts_exchange_facts_between_the_phases(
    stack: FakeStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = SCRIPT.replace("{folder}", str(tmp_path))
    monkeypatch.setattr("yard.doctor.collect.probe_script", lambda cluster, name, nonce: script)
    stack.program("sudo", '[[ $1 == -n ]] && exec "${@:2}"')
    stack.program("ssh", '[[ $* != *gpu-1* ]] || { echo "Permission denied" >&2; exit 255; }; exec bash -c "${!#}"')
    loaded = load_stack("local")
    reports = examine(Remote(loaded), loaded.cluster)
    assert reports[FIRST].of("shm") == [("2",)]
    assert reports[FIRST].of("seen") == [(f"peer nfs {HEAD} written",)]
    assert [report.error for report in reports.values()] == ["", "", "Permission denied"]
    assert len(list(tmp_path.glob("left-*"))) == 2, "the two reachable hosts remove their files at the end"


def run_probe(name: str, *lines: str, fabric_file: Path | None = None) -> list[str]:
    """Run the bash lines, and then a probe. Return its output. `fabric_file` replaces /etc/trainyard/fabric.env."""
    files = "".join((PROBES / f"{file}.sh").read_text() for file in ("lib", name))
    if fabric_file is not None:
        files = files.replace("/etc/trainyard/fabric.env", str(fabric_file))
    script = "\n".join((files, *lines, f"{name}_facts"))
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_no_task_is_sent_to_a_stopped_slurmd() -> None:
    lines = """
    scheduler=slurm self=h head=h
    declare -A hosts=([n0]=127.7.7.7 [n1]=127.7.7.8)
    sinfo() { printf 'n0 gpu\\nn1 gpu\\n'; }
    as_job_user() { echo "$@"; }
    timeout() { shift; "$@"; }
    """
    assert run_probe("memlock", lines) == []
    with socket.create_server(("127.7.7.7", 6818)):
        [task] = run_probe("memlock", lines)
    assert "--nodelist=n0 " in task


def test_probes_parse_the_output_of_gpu_tools(tmp_path: Path) -> None:
    smi = r"""
    nvidia-smi() {
      printf '\t\033[4mGPU0\tGPU1\tNIC0\tCPU Affinity\033[0m\n'
      printf 'GPU0\t X \tNV18\tPIX\t0-47\nGPU1\tNV18\t X \tSYS\t0-47\n\nLegend:\n'
    }
    timeout() { shift; "$@"; }
    """
    assert run_probe("topology", smi) == ["topology\tGPU0\tX NV18 PIX", "topology\tGPU1\tNV18 X SYS"]
    (tmp_path / ".nccl.conf").write_text("# words\nNCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5\n")
    found = run_probe("settings", f"getent() {{ echo x:x:0:0::{tmp_path}:/bin/bash; }}; job_user=x")
    assert f"settings\tfile\t{tmp_path}/.nccl.conf\tNCCL_IB_HCA\tmlx5" in found


@pytest.mark.parametrize("value", ["Ring,Tree", "a b", "=eth0", "it's; b", "enp6s0:8-21;enp12s0:8-21", "", "$HOME"])
def test_quoted_settings_are_read_unchanged(value: str, tmp_path: Path, wide_plan: ClusterPlan) -> None:
    """Values are quoted for the shell. An earlier version of the probe kept the backslash before a comma."""
    host = wide_plan.workers[0]
    made = Fabric(name="x", source="x", dated="2026-11-22", env={"NCCL_ALGO": value, "NCCL_NET": "gIB"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("components.node.parameters.fabrics", lambda: {host.machine.fabric: made})
        text = fabric_env(host)
    file = tmp_path / "fabric.env"
    file.write_text(text)
    sourced = ["bash", "-c", 'source "$1"; printf %s "$NCCL_ALGO"', "-", str(file)]
    assert subprocess.run(sourced, capture_output=True, text=True, check=True).stdout == value
    found = run_probe("settings", "job_user=x; getent() { echo x:x:0:0::/nowhere:/bin/bash; }", fabric_file=file)
    settings = [line.removeprefix("settings\tfabric\t") for line in found if line.startswith("settings\tfabric")]
    assert settings == [f"NCCL_ALGO\t{value}", "NCCL_NET\tgIB"]


def test_the_home_and_the_shared_folder_are_examined() -> None:
    """/proc and /sys are mounted on every computer."""
    found = run_probe("mounts", "self=worker head=head home=/proc shared=/sys/jobs")
    assert {tuple(line.split("\t")[:3]) for line in found} >= {("mounts", "/proc", "proc"), ("mounts", "/sys", "sysfs")}
    assert {line.split("\t")[1] for line in found} == {"/proc", "/sys"}


def test_health_checks_are_reported_with_their_texts() -> None:
    command = "timeout() { printf 'disk-full\\tdegraded\\t/ is full\\tcause\\tfix\\n'; }"
    assert run_probe("health", command) == ["health\tdisk-full\tdegraded\t/ is full\tcause\tfix", "health\tran"]
    assert run_probe("health", "timeout() { return 124; }") == []


def test_a_plugin_without_a_path_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "nccl"
    folder.mkdir(parents=True)
    (folder / "node-1.9").write_text("node-1:9:9 [0] NCCL INFO NET/Plugin: Loaded net plugin gIB (v11)\n")
    found = run_probe("nccl", f'shared={tmp_path} HOSTNAME=node-1; as_job_user() {{ "$@"; }}; grep() {{ :; }}')
    assert "nccl\tplugin\tgIB (v11)" in found


def test_the_newest_log_of_nccl_is_read(tmp_path: Path) -> None:
    setup = f'shared={tmp_path} HOSTNAME=node-1.internal; as_job_user() {{ "$@"; }}; grep() {{ :; }}'
    assert run_probe("nccl", setup) == ["nccl\tlibraries\t"]
    for at, (run, name, text) in enumerate([
        ("old-1", "node-1.7", "node-1:7:7 [0] NCCL INFO Using network Socket"),
        ("new-2", "node-1.9", "NCCL version 2.27.5+cuda12.9\n"
         "node-1:9:9 [0] NCCL INFO NCCL_TOPO_FILE set by environment to /opt/microsoft/ndv5-topo.xml\n"
         "node-1:9:9 [0] NCCL INFO Using network IBext_v8\n"
         "node-1:9:12 [0] NCCL INFO Using network other\n"
         "node-1:9:9 [0] NCCL INFO Plugin Path : /opt/hpcx/lib/libnccl-net.so"),
        ("other-3", "node-2.9", "node-2:9:9 [0] NCCL INFO Using network Socket"),
    ]):  # fmt: skip
        folder = tmp_path / run / "nccl"
        folder.mkdir(parents=True)
        (folder / name).write_text(text + "\n")
        os.utime(folder, (at, at))
    assert run_probe("nccl", setup) == [
        "nccl\tjob\tnew-2",
        "nccl\tversion\t2.27.5+cuda12.9",
        "nccl\tnetwork\tIBext_v8",
        "nccl\ttopology\t/opt/microsoft/ndv5-topo.xml",
        "nccl\tplugin\t/opt/hpcx/lib/libnccl-net.so",
        "nccl\tlibraries\t",
    ]
