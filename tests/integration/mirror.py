"""Servers on this computer for the virtual machines, among them a mirror of the Debian archive."""

from __future__ import annotations

import hashlib
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from components.platforms.local.image_build import machine_archive

GUEST_VIEW = "10.0.2.2"
"""Address of this computer in the external network of a virtual machine."""


class Server:
    """An HTTP server on the loopback address. Its port does not change after a stop."""

    port = 0

    def __init__(self) -> None:
        self._server: ThreadingHTTPServer | None = None

    def handler(self) -> Callable[..., BaseHTTPRequestHandler]:
        raise NotImplementedError

    def start(self) -> None:
        """Listen. Before this call, connections to the port are refused."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), self.handler())
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class Mirror(Server):
    """A mirror of the paths /debian and /debian-security, which fetches each file once.

    `requests` are the paths of all requests, in order.
    """

    def __init__(self, cache: Path, port: int) -> None:
        super().__init__()
        archive = machine_archive()
        self.port = port
        self.requests: list[str] = []
        self._cache = cache
        self._origins = {"debian": archive.main.rstrip("/"), "debian-security": archive.security.rstrip("/")}

    def urls(self, host: str) -> dict[str, str]:
        """Return the value of the key `mirrors` for a node that reaches this computer as `host`."""
        root = f"http://{host}:{self.port}"
        return {"debian": f"{root}/debian", "debian_security": f"{root}/debian-security"}

    def handler(self) -> Callable[..., BaseHTTPRequestHandler]:
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                mirror.requests.append(self.path)
                code, body = mirror.fetch(self.path)
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                """Print nothing."""

        return Handler

    def fetch(self, path: str) -> tuple[int, bytes]:
        """Return the HTTP status and the content for a path, from the cache or the archive."""
        name, _, rest = path.lstrip("/").partition("/")
        if name not in self._origins:
            return 404, b""
        cached = self._cache / hashlib.sha256(path.encode()).hexdigest()
        if not cached.exists():
            try:
                with urllib.request.urlopen(f"{self._origins[name]}/{rest}", timeout=120) as answer:  # noqa: S310
                    content: bytes = answer.read()
            except urllib.error.HTTPError as error:
                return error.code, b""
            new = cached.with_suffix(f".{threading.get_ident()}")
            new.write_bytes(content)
            new.rename(cached)
        return 200, cached.read_bytes()
