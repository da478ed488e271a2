"""A local HTTP server that replaces the vendors' price APIs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from yard.prices import azure, command, gcp
from yard.prices.command import FILE
from yard.prices.web import Web

Answer = Callable[[str, dict[str, str]], tuple[int, Any]]
"""A function that returns the status and the document for a path and headers. A document of type bytes is sent
unchanged; other documents are sent as JSON."""


class Server:
    """A server that responds with the result of `answer`, and records the path and headers of each request."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.answer: Answer = lambda url, headers: (200, {})
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                outer.headers.append(dict(self.headers))
                status, document = outer.answer(self.path, dict(self.headers))
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) + (9 if status == 206 else 0)))
                self.end_headers()
                with suppress(BrokenPipeError):  # the client may close the connection early
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Print no log."""

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
    """Return the server. The price modules use the server's URL."""
    made = Server()
    monkeypatch.setattr(azure, "BASE", f"{made.url}/api/retail/prices")
    monkeypatch.setattr(gcp, "BASE", f"{made.url}/v1/services/6F81-5844-456A/skus")
    monkeypatch.setattr(command, "Web", lambda base, headers: Web(base, headers, pause=lambda seconds: None, seconds=2))
    monkeypatch.setenv(gcp.KEY, "not-a-key")
    yield made
    made.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a copy of the catalog's price file."""
    copy = tmp_path / "prices.yaml"
    copy.write_text(FILE.read_text())
    return copy
