"""Connections to the ports of a running job from other accounts and nodes."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.integration.project import Project, wait_until
from tests.integration.survivors import finish, job_file, submit

pytestmark = pytest.mark.integration

HEAD, FIRST, OTHER = "it-head", "it-gpu-0", "it-gpu-1"
_WAITING = """
import os
import time
from pathlib import Path

place = Path(os.environ["RUN_DIR"])
(place / f"begun-{os.environ['RANK']}").touch()
while not (place / "go").exists():
    time.sleep(0.5)
print("rank", os.environ["RANK"], "has waited", flush=True)
"""


def connects(cluster: Project, node: str, user: str, port: int) -> str:
    """Return "open", "refused" or "silent": the result of a connection from the node to the job's port on FIRST."""
    line = f"timeout 5 bash -c ': <>/dev/tcp/{FIRST}/{port}' 2>&1; echo code $?"
    found = cluster.on(node, f"sudo setpriv --reuid={user} --regid=65534 --clear-groups bash -c {shlex.quote(line)}")
    if "refused" in found:
        return "refused"
    return {"0": "open", "124": "silent"}.get(found.split()[-1], found)


def test_only_the_job_user_reaches_an_elastic_rendezvous(cluster: Project, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(_WAITING)
    job = submit(cluster, job_file(tmp_path, "waiting", launcher="torchrun-elastic", nodes=2, workload="waiting.py"))
    folder = job["run_dir"]
    begun = f"sudo -u trainer sh -c 'ls {folder}/begun-* | wc -l'"
    wait_until("both ranks", 600, lambda: cluster.on(HEAD, begun, check=False).strip() == "2")
    port = 20000 + int(job["id"]) * 10 % 12000
    assert f":{port} " in cluster.on(FIRST, "sudo ss -Hltn")
    assert connects(cluster, OTHER, "65534", port) == "refused"
    assert connects(cluster, FIRST, "65534", port) == "silent"
    assert connects(cluster, OTHER, "2000", port) == connects(cluster, FIRST, "2000", port) == "open"
    assert connects(cluster, HEAD, "0", port) == "open"
    cluster.on(HEAD, f"sudo -u trainer touch {folder}/go")
    assert "rank 0 has waited" in finish(cluster, job)
