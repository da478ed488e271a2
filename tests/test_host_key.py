"""A machine's host key on its way to the cloud's metadata server."""

from __future__ import annotations

import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.stage_sandbox import STAGES


class Metadata(BaseHTTPRequestHandler):
    """A metadata server that takes guest attributes, after it refused some."""

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
    """Run the bootstrap's own function on a machine with that firmware and a metadata server on that port."""
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
def test_the_host_key_goes_to_a_metadata_server_that_takes_it(
    tmp_path: Path, firmware: str, refusals: list[int], published: bool
) -> None:
    taken: list[tuple[str, str | None, bytes]] = []
    handler = type("Server", (Metadata,), {"taken": taken, "refusals": list(refusals)})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        said = publish(tmp_path, firmware, server.server_port)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    path = "/computeMetadata/v1/instance/guest-attributes/hostkeys/ssh-ed25519"
    assert taken == ([(path, "Google", b"AAAAkey")] if published else [])
    assert ("could not publish its host key" in said) is (403 in refusals)


def test_a_metadata_server_that_is_not_there_is_told_on_the_console_and_the_boot_goes_on(tmp_path: Path) -> None:
    assert "could not publish its host key" in publish(tmp_path, "Google Compute Engine", 9)
