"""The alerts, and the real Prometheus, Alertmanager and node exporter on loopback with the nodes' configuration."""

from __future__ import annotations

import json
import re
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.node.monitoring import ALERTMANAGER_PORT, NODE_PORT, RULES, render_monitoring
from tests.cloud_init.stage_sandbox import STAGES
from tests.components.node.test_monitoring import planned
from trainyard.project import ROOT

PROGRAMS = ("prometheus", "promtool", "prometheus-node-exporter", "prometheus-alertmanager", "amtool")
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason="needs Debian's prometheus, -node-exporter and -alertmanager"
)
FILES = STAGES.parents[4]
UNITS = FILES / "etc/systemd/system"
PAGE = Path(__file__).with_name("exporter_page.txt")
ALERTS = FILES / RULES.lstrip("/")


def flags(unit: str, *without: str) -> list[str]:
    """Return the options in a unit's ExecStart without those that depend on the node."""
    line = re.search(r"(?ms)^ExecStart=\S+ (.*?[^\\])$", (UNITS / f"{unit}.service").read_text())
    assert line
    words = line[1].replace("\\\n", " ").replace("$$", "$").split()
    return [word for word in words if not word.startswith(without)]


def wait_for(what: str, found: Callable[[], Any]) -> Any:
    """Return the result as soon as it is true, within 40 seconds."""
    end = time.monotonic() + 40
    while time.monotonic() < end:
        try:
            if result := found():
                return result
        except OSError:
            pass
        time.sleep(0.3)
    raise AssertionError(f"waited for {what}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return answer.read().decode()


def query(port: int, expression: str) -> list[dict[str, Any]]:
    found = json.loads(get(port, f"/api/v1/query?query={urllib.request.quote(expression)}"))  # type: ignore[attr-defined]
    rows: list[dict[str, Any]] = found["data"]["result"]
    return rows


OWN = [line for line in PAGE.read_text().splitlines(keepends=True) if re.match("trainyard_(gpu|health)", line)]
"""The metrics of a node with eight GPUs."""


@contextmanager
def running(*command: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextmanager
def webhook() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Run a server that records JSON documents. Yield its port and the documents."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, received
        server.shutdown()


class Relay(socketserver.StreamRequestHandler):
    """An SMTP server that accepts messages only after STARTTLS."""

    context: ssl.SSLContext
    received: list[tuple[list[str], EmailMessage]]
    """The commands of each session, and its message."""

    def handle(self) -> None:
        commands, is_encrypted = list[str](), False
        self.wfile.write(b"220 relay\r\n")
        while line := self.rfile.readline().decode().strip():
            word = line.upper().partition(" ")[0]
            commands.append(line)
            if word in {"MAIL", "RCPT", "DATA"} and not is_encrypted:
                answer = "530 STARTTLS is required"
            elif word == "DATA":
                self.wfile.write(b"354 go on\r\n")
                lines = iter(self.rfile.readline, b".\r\n")
                found = message_from_bytes(b"".join(lines), policy=policy.default)
                assert isinstance(found, EmailMessage)
                self.received.append((commands, found))
                answer = "250 accepted"
            else:
                answers = {"EHLO": "250 relay" if is_encrypted else "250-relay\r\n250 STARTTLS", "QUIT": "221 bye"}
                answer = answers.get(word, "220 go on" if word == "STARTTLS" else "250 accepted")
            self.wfile.write(f"{answer}\r\n".encode())
            if word == "STARTTLS":
                self.request = self.context.wrap_socket(self.request, server_side=True)
                self.setup()
                is_encrypted = True

    def finish(self) -> None:
        super().finish()
        # The server closes only the socket without TLS.
        self.request.close()


@contextmanager
def relay(folder: Path) -> Iterator[tuple[int, list[tuple[list[str], EmailMessage]]]]:
    """Run a relay with a new certificate. Yield its port, and the commands and the message of each session."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
         "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    received: list[tuple[list[str], EmailMessage]] = []
    handler = type("Handler", (Relay,), {"context": context, "received": received})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], received
        server.shutdown()


def existing_prometheus(first: int) -> dict[str, Any]:
    """Return the configuration of another Prometheus in docs/monitoring.md. `first` is the port of the cluster's."""
    page = (ROOT / "docs" / "monitoring.md").read_text()
    [block] = [text for text in re.findall(r"(?s)```yaml\n(.*?)```", page) if "scrape_configs" in text]
    config: dict[str, Any] = yaml.safe_load(block.replace("localhost:9090", f"127.0.0.1:{first}"))
    return config


@dataclass
class Site:
    """The ports of the exporter, of the cluster's Prometheus and of another one, and the messages about alerts."""

    exporter: int
    first: int
    second: int
    received: list[dict[str, Any]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    exporter_port, first, another, manager_port = (free_port() for _ in range(4))
    with ExitStack() as stack:
        port, received = stack.enter_context(webhook())
        files = render_monitoring(planned({"webhook": "http://x"}), f"http://127.0.0.1:{port}/alerts")
        config = yaml.safe_load(files["monitoring/prometheus.yml"])
        config["global"] |= {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{exporter_port}"]
        text = yaml.safe_dump(config).replace(f"127.0.0.1:{ALERTMANAGER_PORT}", f"127.0.0.1:{manager_port}")
        text = text.replace(RULES, str(ALERTS))
        second = existing_prometheus(first) | {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}}
        manager = files["monitoring/alertmanager.yml"].replace("group_wait: 30s", "group_wait: 1s")
        for name, content in {
            "first.yml": text,
            "second.yml": yaml.safe_dump(second),
            "alertmanager.yml": manager,
            "node.prom": "trainyard_spent_usd 90\ntrainyard_limit_usd 100\n" + "".join(OWN),
        }.items():
            (folder / name).write_text(content)
        own = ("--config", "--web.listen", "--storage")
        exporter = flags("trainyard-exporter", "--web.listen", "--collector.textfile.dir")
        stack.enter_context(
            running(PROGRAMS[2], *exporter, f"--web.listen-address=127.0.0.1:{exporter_port}",
                    f"--collector.textfile.directory={folder}")
        )  # fmt: skip
        stack.enter_context(
            running(PROGRAMS[3], *flags("trainyard-alertmanager", *own), f"--config.file={folder}/alertmanager.yml",
                    f"--web.listen-address=127.0.0.1:{manager_port}", f"--storage.path={folder}/alerts")
        )  # fmt: skip
        for name, listening in (("first", first), ("second", another)):
            stack.enter_context(
                running("prometheus", *flags("trainyard-prometheus", *own), f"--config.file={folder}/{name}.yml",
                        f"--storage.tsdb.path={folder}/{name}", f"--web.listen-address=127.0.0.1:{listening}")
            )  # fmt: skip
        yield Site(exporter_port, first, another, received)


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    files = render_monitoring(planned({"webhook": "http://x", "email": {"to": "a@b.org", "relay": "b.org:25"}}))
    for name, text in files.items():
        (tmp_path / Path(name).name).write_text(text.replace(RULES, str(ALERTS)))
    for command in (("promtool", "check", "config", "prometheus.yml"), ("amtool", "check-config", "alertmanager.yml")):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_alerts_fire_for_the_right_series(tmp_path: Path) -> None:
    cases = Path(__file__).with_name("alerts_test.yml").read_text()
    tested = set(re.findall(r"alertname: (\w+)", cases))
    assert tested == set(re.findall(r"- alert: (\w+)", ALERTS.read_text()))
    (tmp_path / "test.yml").write_text(cases.replace("RULES", str(ALERTS)))
    command = ["promtool", "test", "rules", str(tmp_path / "test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.engine
def test_metrics_of_a_node_are_stored_under_its_name(site: Site) -> None:
    [row] = wait_for("the exporter", lambda: query(site.first, "node_load1"))
    labels = {"instance": "yard-head", "group": "head", "job": "node"}
    assert row["metric"].items() >= labels.items()
    assert query(site.first, "trainyard_limit_usd")[0]["value"][1] == "100"
    # Prometheus renames a label that its targets also have.
    for metric in {re.split("[{ ]", line)[0] for line in OWN}:
        rows = query(site.first, metric)
        assert rows, metric
        assert not [name for row in rows for name in row["metric"] if name.startswith("exported_")]
    # The stored metrics are limited.
    assert "node_memory_Slab_bytes" in get(site.exporter, "/metrics")
    assert query(site.first, "node_memory_Slab_bytes") == []
    [row] = wait_for("the other node", lambda: query(site.first, 'up{job="node",instance="yard-gpu-0"}'))
    assert row["value"][1] == "0"


def test_another_prometheus_reads_the_metrics(site: Site) -> None:
    [row] = wait_for("the second Prometheus", lambda: query(site.second, 'trainyard_limit_usd{job="node"}'))
    assert row["metric"]["instance"] == "yard-head"
    assert row["metric"]["cluster"] == "yard"


def test_an_alert_reaches_the_webhook(site: Site) -> None:
    def alerts() -> list[dict[str, Any]]:
        return [alert for message in site.received for alert in message["alerts"]]

    [budget] = wait_for("the alert", alerts)
    assert budget["labels"]["alertname"] == "BudgetAlmostSpent"
    assert budget["annotations"]["summary"] == "90% of limits.max_usd_per_month is spent"


def test_an_alert_is_sent_as_an_encrypted_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the generated configuration, to a relay whose certificate the system trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    alert = {"labels": {"alertname": "NodeDoesNotAnswer", "instance": "yard-a-0"},
             "annotations": {"summary": "yard-a-0 sends no metrics", "fix": "yard heal repairs it"}}  # fmt: skip
    with relay(tmp_path) as (port, received):
        mail = {"to": "ops@example.org", "sender": "yard@example.org", "relay": f"localhost:{port}"}
        config = render_monitoring(planned({"email": mail}))["monitoring/alertmanager.yml"]
        (tmp_path / "alertmanager.yml").write_text(config.replace("group_wait: 30s", "group_wait: 1s"))
        own, listening = ("--config", "--web.listen", "--storage"), free_port()
        manager = (PROGRAMS[3], *flags("trainyard-alertmanager", *own), f"--config.file={tmp_path}/alertmanager.yml",
                   f"--web.listen-address=127.0.0.1:{listening}", f"--storage.path={tmp_path}/alerts")  # fmt: skip
        with running(*manager):
            wait_for("Alertmanager", lambda: get(listening, "/-/ready"))
            connection = HTTPConnection("127.0.0.1", listening, timeout=5)
            connection.request("POST", "/api/v2/alerts", json.dumps([alert]), {"Content-Type": "application/json"})
            assert connection.getresponse().status == 200
            connection.close()
            [(commands, message)] = wait_for("the message", lambda: received)
    assert [line for line in commands if line.startswith(("STARTTLS", "MAIL", "RCPT"))] == [
        "STARTTLS",
        "MAIL FROM:<yard@example.org>",
        "RCPT TO:<ops@example.org>",
    ]
    assert (message["From"], message["To"]) == ("yard@example.org", "ops@example.org")
    assert message["Subject"].startswith("[FIRING:1] NodeDoesNotAnswer")
    body = message.get_body()
    assert body is not None
    assert {"yard-a-0 sends no metrics", "yard heal repairs it"} <= set(re.findall(r"= (.*?)<br", body.get_content()))


def test_services_listen_only_inside_the_cluster() -> None:
    listening = [
        word
        for unit in ("trainyard-exporter", "trainyard-prometheus", "trainyard-alertmanager")
        for word in flags(unit)
        if word.startswith("--web.listen-address=")
    ]
    assert listening == [
        "--web.listen-address=${address}:${node_port}",
        "--web.listen-address=${address}:${prometheus_port}",
        "--web.listen-address=127.0.0.1:${alertmanager_port}",
    ]
    assert NODE_PORT == 19100
    # Without this option, Alertmanager also listens on port 9094 of all addresses.
    assert "--cluster.listen-address=" in flags("trainyard-alertmanager")
