"""A server that speaks as much of Google Cloud Storage's XML protocol as conditional writes need.

https://cloud.google.com/storage/docs/xml-api/reference-headers#xgoogifgenerationmatch: an object
has a generation, which each write replaces, and a write can require one, or 0 for no object.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class GoogleServer:
    """A running server with its objects: generation and content by path."""

    port: int = 0
    objects: dict[str, tuple[int, bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        """A key of a service account, which names the server."""
        return json.dumps(
            {
                "gcs_base_url": self.url,
                "disable_oauth": True,
                "client_email": "",
                "private_key": "",
                "private_key_id": "",
            }
        )


@contextmanager
def google_server() -> Iterator[GoogleServer]:
    """Run a server while the block runs."""
    server = GoogleServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            generation, _ = server.objects.get(self.path, (0, b""))
            if self.headers.get("x-goog-if-generation-match", str(generation)) != str(generation):
                self._answer(412)
                return
            server.objects[self.path] = generation + 1, data
            self._answer(200, with_data=False)

        def do_GET(self) -> None:
            self._answer(200 if self.path in server.objects else 404)

        def _answer(self, status: int, *, with_data: bool = True) -> None:
            generation, data = server.objects.get(self.path, (0, b""))
            self.send_response(status)
            if status == 200:
                self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')  # noqa: S324 - as it does
                self.send_header("Last-Modified", self.date_time_string())
                self.send_header("x-goog-generation", str(generation))
            body = data if status == 200 and with_data else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        server.port = running.server_address[1]
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            running.shutdown()
            thread.join()
