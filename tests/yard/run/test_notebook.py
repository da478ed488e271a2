"""`yard notebook`: the job's script with a fake JupyterLab, and the forwarding through a real sshd on loopback."""

from __future__ import annotations

import getpass
import json
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.offline.loopback_sshd import Sshd, free_port
from tests.yard.conftest import FakeStack, refused, wait_until, yard
from trainyard.errors import RemoteError
from trainyard.outputs import Cluster, dumped
from yard.run import notebook, query
from yard.run.submit import Submitted

_SERVER = """#!{python}
import os, socketserver, sys
from http.server import BaseHTTPRequestHandler

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        is_known = self.path.endswith("?token=" + open(os.environ["JUPYTER_TOKEN_FILE"]).read())
        self.send_response(200 if is_known else 403)
        self.end_headers()
        self.wfile.write(b"lab")

    def log_message(self, *words):
        pass

options = dict(word.split("=", 1) for word in sys.argv[1:] if "=" in word)
print(sys.argv, flush=True)
socketserver.UnixStreamServer(options["--ServerApp.sock"], Handler).serve_forever()
"""


class Job:
    """Job 7 on a cluster without a scheduler. Its run folder is on this computer."""

    def __init__(self, shared: Path) -> None:
        self.folder = shared / "jobs" / "notebook-20261124-000000-abcd"
        self.folder.mkdir(parents=True, mode=0o700)
        (shared / "jobs" / ".ids").mkdir()
        (shared / "jobs" / ".ids" / "7").symlink_to(self.folder)
        self.set_state("RUNNING")

    def set_state(self, state: str) -> None:
        facts = dict.fromkeys(query.FIELDS, "") | {"id": 7, "name": "notebook", "user": getpass.getuser()}
        # A job without a runner counts as alive for 30 s after its submission.
        times = {"submitted": time.time() + 600, "started": 1, "ended": None if state == "RUNNING" else time.time()}
        counts = {"nodes": 1, "restarts": 0, "exit_code": 0, "run_dir": str(self.folder), "runner": None}
        (self.folder / "new").write_text(json.dumps({**facts, **counts, **times, "state": state}))
        (self.folder / "new").replace(self.folder / "state.json")

    def start(self, rank: int = 0) -> subprocess.Popen[bytes]:
        words = ["bash", "--norc", "-euo", "pipefail", str(ROOT / "yard" / "run" / "notebook.sh")]
        variables = {"RUN_DIR": str(self.folder), "NODE_RANK": str(rank), "NODE_IP": "10.77.2.1"}
        with (self.folder / "job.log").open("a") as log:
            return subprocess.Popen(
                words, env={**os.environ, **variables}, stdout=log, stderr=log, start_new_session=True
            )


@pytest.fixture
def job(tmp_path: Path, stack: FakeStack) -> Iterator[Job]:
    program = stack.program("jupyter-lab", "")
    (program.folder / program.name).write_text(_SERVER.replace("{python}", sys.executable))
    made = Job(tmp_path / "shared")
    process = made.start()
    wait_until((made.folder / "notebook").exists, 60)
    yield made
    os.killpg(process.pid, 15)
    process.wait(60)


def test_only_the_job_user_can_reach_the_server(job: Job) -> None:
    node, path, token = (job.folder / "notebook").read_text().split()
    assert (node, len(token)) == ("10.77.2.1", 48)
    assert stat.S_IMODE(Path(path).parent.stat().st_mode) == 0o700
    for name in ("notebook", "notebook-token"):
        assert stat.S_IMODE((job.folder / name).stat().st_mode) == 0o600
    log = (job.folder / "job.log").read_text()
    assert f"--ServerApp.sock={path}" in log
    assert "--ServerApp.ip" not in log
    assert token not in log


def test_other_nodes_wait_for_the_end_of_the_server(job: Job) -> None:
    process = job.start(rank=1)
    time.sleep(0.5)
    assert process.poll() is None
    (job.folder / "notebook-ended").touch()
    assert process.wait(60) == 0


@pytest.mark.engine
def test_a_local_port_leads_to_the_server_until_the_job_ends(
    job: Job, stack: FakeStack, sshd: Sshd, local: Cluster
) -> None:
    shared = str(job.folder.parent.parent)
    cluster: dict[str, Any] = dumped(replace(local, scheduler="none", shared_path=shared))
    login = {"port": sshd.port, "host_key": sshd.host_key, "address": "127.0.0.1"}
    cluster["head"] |= {**login, "user": getpass.getuser()}
    cluster["nodes"][0] |= login
    stack.export({"cluster": cluster, "user_private_key": sshd.private_key})
    port, token, seen = free_port(), (job.folder / "notebook-token").read_text(), []

    def get(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def use() -> None:
        wait_until(lambda: get("/lab"), 120)
        seen.extend([get("/lab"), get(f"/lab?token={token}")])
        job.set_state("COMPLETED")

    browser = threading.Thread(target=use)
    browser.start()
    code, out, err = yard("notebook", "7", "--port", str(port))
    browser.join()
    assert seen == [403, 200]
    assert out == f"http://127.0.0.1:{port}/lab?token={token}\n"
    assert code == 1
    assert "job 7 (notebook) has ended" in err
    assert get("/lab") == 0


def test_the_job_contains_jupyterlab(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(notebook, "provide", lambda _, found, builds: found)

    def submit(_: object, found: object) -> Submitted:
        jobs.append(found)
        return Submitted(job=7, run_dir="/x", snapshot=None)

    monkeypatch.setattr(notebook, "submit", submit)
    monkeypatch.setattr(notebook, "connect", lambda _, number, port, as_json: None)
    assert yard("notebook", "--with", "pandas", "--nodes", "2", "--time", "2h")[0] == 0
    assert list(jobs[0].packages) == ["pandas", "jupyterlab"]
    assert "#SBATCH --nodes=2\n" in jobs[0].files["job.sbatch"]
    assert "jupyter-lab" in jobs[0].files["run.sh"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} of this computer is in use" in refused("notebook", "--port", str(port))
    assert len(jobs) == 1


def test_a_lost_connection_is_opened_again_and_ctrl_c_keeps_the_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = iter([RemoteError("no route"), KeyboardInterrupt()])

    def fail(*_: object) -> None:
        raise next(errors)

    monkeypatch.setattr(notebook, "_wait_for_server", fail)
    monkeypatch.setattr(notebook, "_POLL_SECONDS", 0.0)
    remote: Any = None
    notebook.connect(remote, 7, 8888, as_json=False)
    out, err = capsys.readouterr()
    assert "no route; trying again" in err
    assert "`yard notebook 7` connects again, and `yard cancel 7` ends it" in out
