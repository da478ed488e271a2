"""Measures Prometheus's memory with the exporter pages of 64 nodes: python -m tools.bench_monitoring [SECONDS].

A server on loopback plays the nodes with recorded pages whose numbers change. Prometheus reads them once a second
instead of every 30 seconds, so six minutes produce the samples of three hours, which is the most that Prometheus keeps
in memory before it writes a block (prometheus 2.42, tsdb/head.go, compactable; read 2026-11-27).
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path

import yaml

from components.node.monitoring import NODE_PORT, RULES, prometheus_config
from components.plan.plan import ClusterPlan
from components.stackfile.read import parse_stack
from trainyard.project import ROOT

NODES = 64
PAGE = ROOT / "tests" / "cloud_init" / "exporter_page.txt"
"""The page of a node with eight GPUs, eight InfiniBand cards and ten disks."""
SERVICE = ROOT / "cloud-init/files/etc/systemd/system/trainyard-prometheus.service"
_STACK = """
config:
  trainyard:cluster:
    name: yard
    platform: {provider: local}
    head: {machine: vm-head}
    nodes: {a: {machine: vm-gpu2, count: COUNT}, b: {machine: vm-gpu2, count: COUNT}}
    monitoring: true
"""
_VARIANTS = 8
_PORT = 19490


def plan_of(nodes: int) -> ClusterPlan:
    """Return the plan of a cluster with two groups and this number of workers."""
    return parse_stack(_STACK.replace("COUNT", str(nodes // 2)), "bench").plan


def variant(page: str, seed: int) -> bytes:
    """Return the page with other numbers, which are harder to compress than equal ones."""
    source = random.Random(seed)  # noqa: S311
    pattern = re.compile(r"(?m)^([a-z]\S*(?: \S+)*) (\S+)$")
    return pattern.sub(lambda row: f"{row[1]} {float(row[2]) + source.randint(0, 1000):.15g}", page).encode()


def serve(pages: list[bytes]) -> ThreadingHTTPServer:
    """Serve the pages in turn on NODE_PORT of all loopback addresses."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = pages[(int(time.time()) + int(self.connection.getsockname()[0].rpartition(".")[2])) % len(pages)]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore a scrape that Prometheus has ended because of its timeout."""

    server = Server(("0.0.0.0", NODE_PORT), Handler)  # noqa: S104  (loopback addresses of 64 nodes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def on_loopback(plan: ClusterPlan) -> str:
    """Return prometheus.yml with the nodes' addresses replaced by loopback addresses."""
    config = prometheus_config(plan, has_receiver=False)
    config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s"}
    config["rule_files"] = [str(ROOT / "cloud-init/files" / RULES.lstrip("/"))]
    text = yaml.safe_dump(config)
    for index, host in enumerate(plan.hosts):
        text = re.sub(rf"\b{host.private_ip}:{NODE_PORT}\b", f"{IPv4Address('127.9.0.1') + index}:{NODE_PORT}", text)
    return text


def memory_mib(pid: int) -> dict[str, float]:
    """Return the resident memory of a process, and the part of it that is not backed by files."""
    rows = dict(re.findall(r"(?m)^(VmHWM|VmRSS|RssAnon):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()))
    return {name: int(value) / 1024 for name, value in rows.items()}


def main(seconds: int) -> None:
    """Run the measurement and print a line every 30 seconds."""
    limits = dict(re.findall(r"\b(GO\w+)=(\d+)", SERVICE.read_text()))
    page = PAGE.read_text()
    server = serve([variant(page, seed) for seed in range(_VARIANTS)])
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "prometheus.yml").write_text(on_loopback(plan_of(NODES)))
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                   f"--web.listen-address=127.0.0.1:{_PORT}", "--query.max-concurrency=4"]  # fmt: skip
        environment = os.environ | limits
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        try:
            for at in range(0, seconds + 1, 30):
                shown = ", ".join(f"{name} {value:.0f} MiB" for name, value in memory_mib(process.pid).items())
                print(f"{at} s: {shown}", flush=True)
                time.sleep(30)
        finally:
            process.terminate()
            process.wait()
            server.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 360)
