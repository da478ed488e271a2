"""The services that 80-watch starts or restarts, and the nodes that 90-health returns to service."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import STAGES, Sandbox

UNIT = "trainyard-health.service"


def watch(root: Path, role: str) -> list[str]:
    (root / "run/trainyard").mkdir(parents=True, exist_ok=True)
    return Sandbox(root, ("systemctl",), {}).run("80-watch", ROLE=role).commands


def test_daemon_restarts_only_after_a_change(tmp_path: Path) -> None:
    code = tmp_path / "usr/local/lib/trainyard/health"
    code.mkdir(parents=True)
    (code / "core.py").write_text("1\n")
    (code / "checks.json").write_text("{}\n")
    assert watch(tmp_path, "worker") == [f"systemctl restart {UNIT}"]
    assert watch(tmp_path, "worker") == [f"systemctl start {UNIT}"]
    (code / "core.py").write_text("2\n")
    assert watch(tmp_path, "worker") == [f"systemctl restart {UNIT}"]


def test_head_with_slurm_has_the_repair_service(tmp_path: Path) -> None:
    assert watch(tmp_path, "head") == ["systemctl restart trainyard-repair.service"]


@pytest.mark.parametrize(("timeline", "state", "calls"), [
    ("", "IDLE+DRAIN", ["return --new", "program"]),
    ("9 ready\n", "DOWN*", ["return", "program"]),
    ("9 ready\n", "IDLE", []),
])  # fmt: skip
def test_node_out_of_service_may_return_after_its_boot(
    timeline: str, state: str, calls: list[str], tmp_path: Path
) -> None:
    text = (STAGES / "90-health").read_text()
    end = text[text.index("[[ $(scontrol -o show node") :]
    (tmp_path / "timeline").write_text(timeline)
    end = end.replace("/var/lib/trainyard/timeline", f"{tmp_path}/timeline")
    end = end.replace("/usr/local/sbin/trainyard-health return", "echo return")
    end = end.replace("/usr/local/sbin/trainyard-health-program", "echo program")
    script = f"set -euo pipefail\nscontrol() {{ echo 'NodeName=n State={state} ThreadsPerCore=1'; }}\n{end}"
    done = subprocess.run(["bash", "-c", script], env={"TRAINYARD_NODE": "n", "PATH": os.environ["PATH"]},
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout.splitlines() == calls
