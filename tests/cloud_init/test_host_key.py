"""Publication of a machine's host key through the cloud's metadata server."""

from __future__ import annotations

import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.cloud_init.stage_sandbox import STAGES

pytestmark = pytest.mark.engine


class Metadata(BaseHTTPRequestHandler):
    """A metadata server that first refuses the requests in `refusals` and then stores guest attributes."""

    taken: list[tuple[str, str | None, bytes]]
    refusals: list[int]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.refusals:
            self.send_response(self.refusals.pop())
        else:
            self.taken.append((self.path, self.headers["Metadata-Flavor"], body))
            self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def publish(tmp_path: Path, firmware: str, port: int) -> str:
    """Run publish_host_key from the bootstrap with this firmware and with the metadata server on this port."""
    text = (STAGES.parent / "bootstrap").read_text()
    [function] = re.findall(r"^publish_host_key\(\) \{.*?^\}$", text, re.M | re.S)
    product = tmp_path / "product_name"
    product.write_text(f"{firmware}\n")
    moved = function.replace("/sys/class/dmi/id/product_name", str(product)).replace(
        "/dev/tcp/169.254.169.254/80", f"/dev/tcp/127.0.0.1/{port}"
    )
    stubs = 'set -euo pipefail\nTRAINYARD_NODE=n\nconsole() { echo "$*"; }\nsleep() { :; }\n'
    script = f'{stubs}{moved}\npublish_host_key "$@"\n'
    command = ["bash", "-c", script, "_", "ssh-ed25519", "AAAAkey"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.parametrize(
    ("firmware", "refusals", "published"),
    [
        ("Google Compute Engine", [], True),
        ("Google Compute Engine", [503, 404], True),
        ("Standard PC (Q35)", [], False),
    ],
)
def test_host_key_is_published_on_google_cloud_only(
    tmp_path: Path, firmware: str, refusals: list[int], published: bool
) -> None:
    taken: list[tuple[str, str | None, bytes]] = []
    handler = type("Server", (Metadata,), {"taken": taken, "refusals": list(refusals)})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        output = publish(tmp_path, firmware, server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    path = "/computeMetadata/v1/instance/guest-attributes/hostkeys/ssh-ed25519"
    assert taken == ([(path, "Google", b"AAAAkey")] if published else [])
    assert ("could not publish its host key" in output) is (403 in refusals)


def test_missing_metadata_server_is_logged_and_boot_continues(tmp_path: Path) -> None:
    assert "could not publish its host key" in publish(tmp_path, "Google Compute Engine", 9)
