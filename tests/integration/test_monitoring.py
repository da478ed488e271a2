"""Metrics and alerts on a cluster of virtual machines, with packages from a mirror of Debian's archive."""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from tests.integration.mirror import GUEST_VIEW, Mirror
from tests.integration.project import Project, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.full]

HEAD, WORKERS = "mon-head", ("mon-gpu-0", "mon-gpu-1")
NODES = (HEAD, *WORKERS)
_GET = """python3 -c '
import sys, urllib.parse, urllib.request
base, query = sys.argv[1:]
print(urllib.request.urlopen(base + urllib.parse.quote(query), timeout=10).read().decode())
' """
"""Prints an answer. Its arguments are an URL and a query, which is quoted."""
_SERVICES = ("exporter", "prometheus", "alertmanager")


class Alerts(BaseHTTPRequestHandler):
    """Records the alerts that Alertmanager sends."""

    received: list[dict[str, Any]] = []  # noqa: RUF012  (the class is only used once)

    def do_POST(self) -> None:
        self.received.extend(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["alerts"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A running cluster with monitoring, whose alerts arrive in Alerts.received."""
    project = Project(tmp_path_factory.mktemp("mon") / "project", cluster="mon", port_base=23700)
    mirror = Mirror(tmp_path_factory.mktemp("mirror"), 28900)
    server = HTTPServer(("127.0.0.1", 0), Alerts)
    webhook = f"http://{GUEST_VIEW}:{server.server_port}/"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    project.edit(lambda spec: spec.update(monitoring={"webhook": webhook}, mirrors=mirror.urls(GUEST_VIEW)))
    project.setup()
    mirror.start()
    try:
        project.stack("up", timeout=1500)
        yield project
    finally:
        mirror.stop()
        server.shutdown()
        server.server_close()
        project.down(check=False)


def query(site: Project, expression: str) -> list[dict[str, Any]]:
    """Return the series in the answer of Prometheus on the head, or none if it does not answer."""
    command = f"{_GET} http://{HEAD}:19090/api/v1/query?query= {shlex.quote(expression)}"
    lines = [line for line in site.on(HEAD, command, check=False).splitlines() if line.startswith("{")]
    rows: list[dict[str, Any]] = json.loads(lines[-1])["data"]["result"] if lines else []
    return rows


def test_every_node_sends_metrics(site: Project) -> None:
    def up() -> set[str]:
        return {row["metric"]["instance"] for row in query(site, 'up{job="node"} == 1')}

    wait_until("the metrics of all nodes", 900, lambda: up() == set(NODES), 5)
    wait_until("Slurm's metrics", 120, lambda: bool(query(site, 'trainyard_nodes{state="idle"} == 2')), 5)
    assert {row["metric"]["mountpoint"] for row in query(site, "node_filesystem_size_bytes")} >= {"/"}
    assert query(site, 'trainyard_health_check_failed{check="munge"} == 0')


def test_services_are_confined_and_use_little_memory(site: Project) -> None:
    for node in NODES:
        units = " ".join(f"trainyard-{name}" for name in (_SERVICES if node == HEAD else _SERVICES[:1]))
        assert "failed" not in site.on(node, f"systemctl is-active {units}")
        site.on(node, "systemctl is-failed prometheus prometheus-node-exporter trainyard-collector", check=False)
        shown = site.on(node, f"systemctl show -p Id,MemoryCurrent,MemoryPeak,CPUUsageNSec {units} trainyard-collector")
        assert "MemoryCurrent=" in shown
        listening = site.on(node, "sudo ss -Hltnp")
        assert not re.findall(r"(?:0\.0\.0\.0|\*|\[::\]):(?:9\d\d\d|1909\d|19100)\b.*", listening), listening
        levels = site.on(
            node, "sudo systemd-analyze security --no-pager | grep -E 'trainyard-(exporter|prom|alert|coll)'"
        )
        assert all(float(level) <= 3.0 for level in re.findall(r"\.service +(\d+\.\d)", levels)), levels


def test_gpus_of_a_job_have_its_number(site: Project) -> None:
    (site.folder / "sleeper.yaml").write_text("name: sleeper\nnodes: 1\ntime: 30m\nrun: sleep 1500\n")
    job = site.submit("sleeper.yaml")["id"]
    wait_until("the job's GPUs", 150, lambda: bool(query(site, f'trainyard_gpu_job{{slurm_job="{job}"}}')), 5)
    # The head's metrics of jobs are written and read at other times than those of the worker.
    running = 'trainyard_jobs{state="running",user="trainer"} == 1 and on() trainyard_gpus_allocated > 0'
    wait_until("the metrics of the job", 150, lambda: bool(query(site, running)), 5)
    site.on(HEAD, f"sudo scancel {job}")


def test_only_administrators_reach_the_metrics(site: Project) -> None:
    for url in (f"{HEAD}:19090/metrics", f"{WORKERS[0]}:19100/metrics", f"{HEAD}:19100/metrics"):
        command = f"{_GET} http://{url} ''"
        assert "HELP" in site.on(HEAD, command)
        refused = site.on(HEAD, f"sudo setpriv --reuid=trainer --clear-groups {command}", check=False)
        assert "Connection refused" in refused


def test_an_alert_is_delivered_and_jobs_continue_without_monitoring(site: Project) -> None:
    pids = "pidof slurmctld slurmdbd"
    before = site.on(HEAD, pids)
    site.on(WORKERS[1], "sudo systemctl stop trainyard-exporter")
    silent = {"alertname": "NodeDoesNotAnswer", "instance": WORKERS[1]}
    wait_until("the alert", 600, lambda: any(silent.items() <= row["labels"].items() for row in Alerts.received), 5)
    site.edit(lambda spec: spec.update(monitoring=False))
    site.stack("up", timeout=600)
    for node in NODES:
        assert "inactive" in site.on(node, "systemctl is-active trainyard-exporter", check=False)
    assert site.on(HEAD, pids) == before
