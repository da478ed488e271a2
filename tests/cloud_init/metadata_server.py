"""A cloud's metadata service on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Metadata:
    """The service's texts by path, and what was written to it. A request without the cloud's header is refused."""

    header: tuple[str, str]
    texts: dict[str, str] = field(default_factory=dict)
    refusals: list[int] = field(default_factory=list)
    """Status codes of the next answers to writes."""
    written: dict[str, bytes] = field(default_factory=dict)
    port: int = 0

    @contextmanager
    def running(self) -> Iterator[Metadata]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = service.texts.get(self.path)
                self.answer(400 if text is None else 200, text or "")

            def do_PUT(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if service.refusals:
                    return self.answer(service.refusals.pop())
                service.written[self.path] = body
                self.answer(200)

            def answer(self, status: int, text: str = "") -> None:
                name, value = service.header
                self.send_response(status if self.headers.get(name) == value else 400)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = server.server_port
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield self
        server.shutdown()
        server.server_close()
