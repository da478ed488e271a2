"""A server on this machine in the place of the vendors' price lists."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jobs.prices import azure, command, gcp
from jobs.prices.command import FILE
from jobs.prices.web import Web

Answer = Callable[[str, dict[str, str]], tuple[int, Any]]
"""From an address and headers to a status and a document (text is sent as it is)."""


class Server:
    """Answers by one function, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Answer = lambda url, headers: (200, {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                outer.headers.append(dict(self.headers))
                status, document = outer.answer(self.path, dict(self.headers))
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) + (9 if status == 206 else 0)))
                self.end_headers()
                with suppress(BrokenPipeError):  # who asked may have heard enough
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server in the vendors' place."""
    made = Server()
    monkeypatch.setattr(azure, "BASE", f"{made.url}/api/retail/prices")
    monkeypatch.setattr(gcp, "BASE", f"{made.url}/v1/services/6F81-5844-456A/skus")
    monkeypatch.setattr(command, "Web", lambda base, headers: Web(base, headers, pause=lambda seconds: None, seconds=2))
    monkeypatch.setenv(gcp.KEY, "not-a-key")
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A copy of the project's price file."""
    copy = tmp_path / "prices.yaml"
    copy.write_text(FILE.read_text())
    return copy
