"""`up` with failing stages and with a killed engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.project import STAGES, Project, alive, wait_until
from yard.stack.pulumi import session_members

pytestmark = [pytest.mark.integration, pytest.mark.full]

_ONCE = """# Fails in its first run on a node, like a package mirror with temporary errors.
# runs: once
[[ -e /var/lib/trainyard/hiccup ]] || { touch /var/lib/trainyard/hiccup; fail 'the mirror hiccuped'; }
"""
_ALWAYS = """# Always fails on workers.
# runs: once
is_head || fail 'the flux capacitor is missing'
"""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A project with one worker and two additional stages that fail. One stage fails once on each node, and the other
    stage always fails on workers."""
    project = Project(Path(tmp_path_factory.mktemp("faulty")) / "project", cluster="bad", port_base=23300)
    project.edit(lambda spec: spec["nodes"]["gpu"].update(count=1))
    stages = project.folder / STAGES
    (stages / "12-hiccup").write_text(_ONCE)
    (stages / "65-flux").write_text(_ALWAYS)
    project.setup()
    try:
        yield project
    finally:
        project.down(check=False)


def test_up_repairs_a_killed_up_and_reports_a_failed_stage(faulty: Project) -> None:
    # The engine is killed while the machines boot. The next `up` must still work.
    first = faulty.start("python", "-m", "tools.stack", "up", "local")
    run = faulty.folder / ".trainyard" / "run"
    wait_until("two machines", 120, lambda: len(list(run.rglob("console.log"))) == 2, 0.5)
    time.sleep(2)
    engine = int(Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()[0])
    for pid in (first.pid, engine):
        os.kill(pid, signal.SIGKILL)
    first.wait(30)
    assert first.stdout is not None
    first.stdout.close()

    done = faulty.stack("up", timeout=900, check=False)
    assert done.code != 0
    assert "bad-gpu-0: stage 65-flux failed: the flux capacitor is missing" in done.out, done.out
    # The console shows that one stage failed once. Its second attempt succeeded, because the next stage ran.
    console = next(run.rglob("bad-head/console.log")).read_text(errors="replace")
    assert "stage 12-hiccup failed (attempt 1 of 3)" in console
    assert session_members(engine) == [], "plugins of the killed engine still run"
    _machines_can_be_reached(faulty)


def _machines_can_be_reached(faulty: Project) -> None:
    """Check that yard reaches the machines, although the cluster is not ready."""
    unready = "cluster 'bad' has not become ready: the gate on the head has not passed. Fix: "
    listed = faulty.yard("nodes").out
    assert unready in listed
    assert "bad-gpu-0" in listed
    assert faulty.on("bad-gpu-0", "hostname").strip().endswith("bad-gpu-0")
    examined = faulty.yard("doctor", check=False).out
    assert unready in examined
    assert "2 hosts" in examined
    refused = faulty.yard("submit", "hello", check=False)
    assert refused.code != 0
    assert unready in refused.out


def test_down_after_failure_leaves_nothing(faulty: Project) -> None:
    pids = [faulty.pid(node) for node in ("bad-head", "bad-gpu-0")]
    faulty.down()
    assert not [pid for pid in pids if alive(pid)]
