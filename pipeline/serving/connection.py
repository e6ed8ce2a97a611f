"""A connection of the server: uvicorn's, with limits for clients that are slow or half-closed.

uvicorn waits without end for the head of a request, closes a connection whose client has closed its
sending half although it waits for an answer, and on shutdown closes connections at once on which a
request may be under way. Here,

- a head must be whole within `HEAD_SECONDS`, and so must the first request of a connection;
- a client that has sent a whole request and closed its half gets its answer, and then the end;
- when the server stops, every answer says `Connection: close`, so that the client sends nothing
  more, and a connection whose client was not told stays open for `QUIET_SECONDS`; a request that
  arrives in that time is answered.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.flow_control import CLOSE_HEADER
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
QUIET_SECONDS = 1.0


class Connection(H11Protocol):
    """A connection of HTTP/1.1."""

    _head_timer: asyncio.TimerHandle | None = None
    _is_stopping = False
    _is_half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on what the client sends, and measure how long a head takes."""
        super().data_received(data)
        if self._has_request():
            self._stop_waiting()
            if self._is_stopping:
                self._answer_last()
        elif self._head_timer is None:
            self._wait_for_head()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn's own returns nothing
        """Keep the connection until a whole request of the client is answered."""
        self._is_half_closed = True
        if self._has_request() and not self.cycle.more_body:
            self._answer_last()
            return True
        return False

    def on_response_complete(self) -> None:
        """Wait for the next request, unless the client or the server ends."""
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
