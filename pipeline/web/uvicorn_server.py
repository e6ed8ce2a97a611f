"""uvicorn's server and its connections: limits for slow clients, and word when it is ready.

The connection notes in the scope of a request that its client has gone; whoever computes an answer
asks here for a notification.

uvicorn waits without end for the head of a request, closes a connection whose client has closed its
sending half although it waits for an answer, and on shutdown closes connections at once on which a
request may be under way. Here,

- a head must be whole within `HEAD_SECONDS`, and so must the first request of a connection;
- a client that has sent a whole request and closed its half gets its answer, and then the end;
- what a client has asked for that has closed the connection is not computed;
- the head and the body of an answer are sent together, which saves the kernel's work of a packet;
- a body in very many small chunks, each of which takes long to read, is refused;
- when the server stops, every answer says `Connection: close`, so that the client sends nothing
  more, and a connection whose client was not told stays open for `QUIET_SECONDS`; a request that
  arrives in that time is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.request_headers import Scope

_GONE, _ON_GONE = "patchline.client_gone", "patchline.on_client_gone"


def note_gone(scope: Any) -> None:
    """Note that the client of a request has gone, and tell who waits for that."""
    scope[_GONE] = True
    if (on_gone := scope.get(_ON_GONE)) is not None:
        on_gone()


@contextmanager
def while_present(scope: Scope, on_gone: Callable[[], None]) -> Iterator[None]:
    """Have a function called if the client goes while the block runs.

    Args:
        scope: the request's ASGI scope.
        on_gone: the function that is called if the client goes.

    Raises:
        ClientDisconnect: if it has gone already.
    """
    if scope.get(_GONE):
        raise ClientDisconnect
    scope[_ON_GONE] = on_gone
    try:
        yield
    finally:
        del scope[_ON_GONE]


HEAD_SECONDS = 10.0
QUIET_SECONDS = 1.0
_PROBE_SECONDS = 0.05
"""After so long, a client that has closed at least its half is asked whether it is still there."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_SMALL_CHUNK = re.compile(rb"\r\n0*[0-9A-Fa-f]{1,2}(?:[;\t ][^\r\n]*)?\r\n")
_MOST_SMALL_CHUNKS = 500
"""That arrive together, of less than 256 bytes each."""


class _JoinedWrites:
    """A transport that sends together what is written before the event loop runs again.

    Args:
        transport: the connection's own transport.
        loop: the server's event loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        """Return everything else of the transport."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Hold data until the event loop runs again, or `flush`."""
        if not data:
            return
        if not self._held:
            self._loop.call_soon(self.flush)
        self._held.append(data)

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            held, self._held = self._held, []
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))

    def close(self) -> None:
        """Send what is held, and close."""
        self.flush()
        self._transport.close()


class Connection(H11Protocol):
    """A connection of HTTP/1.1."""

    _head_timer: asyncio.TimerHandle | None = None
    _is_stopping = False
    _is_half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin to wait for the first request."""
        super().connection_made(_JoinedWrites(transport, self.loop))  # type: ignore[arg-type]  # behaves as one
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        if self._has_request():
            note_gone(self.cycle.scope)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on what the client sends, and measure how long a head takes."""
        if _has_small_chunks(data):
            self._refuse_chunks()
            return
        super().data_received(data)
        if self._has_request():
            self._stop_waiting()
            if not self.cycle.more_body and not self.conn.trailing_data[0]:
                self.flow.resume_reading()  # paused for a large body: its end would not be noticed
            if self._is_stopping:
                self._answer_last()
        elif self._head_timer is None:
            self._wait_for_head()

    def _refuse_chunks(self) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.send_400_response("The chunks of the body are too small. Send larger ones.")
        else:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's own returns nothing
        """Keep the connection until a whole request of the client is answered."""
        self._is_half_closed = True
        if self._has_request() and not self.cycle.more_body:
            self._answer_last()
            self.loop.call_later(_PROBE_SECONDS, self._ask_whether_gone, self.cycle)
            return True
        return False

    def _ask_whether_gone(self, cycle: Any) -> None:
        """Let a client that has closed the connection reset it; one that waits passes over this.

        A connection that was closed and one of which a half was closed look alike until something
        is sent. Every client of HTTP/1.1 has to accept `100 Continue` (RFC 9110, section 15.2).
        """
        if not cycle.response_started and self.conn.their_http_version == b"1.1":
            self.transport.write(_CONTINUE)
            self._look_for_reset(cycle)

    def _look_for_reset(self, cycle: Any) -> None:
        """End the connection once its client has reset it; asyncio does not watch a closed half."""
        if cycle.response_started or self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self.loop.call_later(_PROBE_SECONDS, self._look_for_reset, cycle)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless the client or the server ends."""
        self.transport.flush()  # type: ignore[attr-defined]  # of `_JoinedWrites`
        super().on_response_complete()
        if self._has_request() or self.transport.is_closing():
            return
        if self._is_half_closed:
            self.transport.close()
        elif self._is_stopping:
            self.loop.call_later(QUIET_SECONDS, self._close_if_quiet)

    def shutdown(self) -> None:
        """Stop: answer what is under way, or arrives now."""
        self._is_stopping = True
        if self._has_request():
            self._answer_last()
        else:
            self.loop.call_later(QUIET_SECONDS, self._close_if_quiet)

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _answer_last(self) -> None:
        """Let the answer say that the connection closes behind it, unless it has begun."""
        if not self.cycle.response_started:
            self.cycle.keep_alive = False
            if CLOSE_HEADER not in self.cycle.scope["headers"]:  # uvicorn repeats it in the answer
                self.cycle.scope["headers"] = [*self.cycle.scope["headers"], CLOSE_HEADER]

    def _close_if_quiet(self) -> None:
        if not self._has_request() and not self.transport.is_closing():
            self.transport.close()

    def _wait_for_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._close_if_quiet)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _unsupported_upgrade_warning(self) -> None:
        """Ignore requests for WebSockets, of which there are none here."""


def _has_small_chunks(data: bytes) -> bool:
    """Return whether what a client has sent holds very many small chunks."""
    most = _MOST_SMALL_CHUNKS
    return data.count(b"\r\n") > most and len(_SMALL_CHUNK.findall(data)) > most


_MOST_HEAD_BYTES = 1 << 14


def uvicorn_config(app: Any, config: ServingConfig) -> uvicorn.Config:
    """Return how uvicorn serves an application."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,  # a client's own claim about its address is not trusted
        server_header=False,
        timeout_keep_alive=config.idle_limit,  # type: ignore[arg-type]  # a float does
        timeout_graceful_shutdown=round(config.time_limit) + 5,
        h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
        ssl_certfile=config.tls_certificate,
        ssl_keyfile=config.tls_key,
    )


class ReadyServer(uvicorn.Server):
    """A server that calls a function once it listens.

    Args:
        config: uvicorn's settings.
        on_ready: the function that is called once the server listens.
    """

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and tell so."""
        await super().startup(sockets)
        self._on_ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on a signal; a second Ctrl-C stops at once."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
