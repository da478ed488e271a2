"""The services that 80-watch starts or restarts, and the verdict of a node that 90-health returns to service."""

from __future__ import annotations

from pathlib import Path

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


def test_node_that_returns_to_service_keeps_its_verdict() -> None:
    text = (STAGES / "90-health").read_text()
    resume = text.index("state=resume")
    assert text.index("/usr/local/sbin/trainyard-health-program", resume) > resume
    assert text.count("state=resume") == 1
