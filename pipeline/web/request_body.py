"""Bodies: read within limits of size, time and memory, written as JSON; why one is refused."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from patchline.pipeline.web.config import MEBIBYTE


class Refusal(Exception):  # noqa: N818 - the word for it; nothing is wrong with the server
    """A request that is answered with an error.

    Args:
        status: the status of the answer.
        sentence: the sentence of the answer: the value, the rule, the remedy.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: HTTPStatus, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = dict(headers or {})


def bad_request(sentence: str) -> Refusal:
    """Return the refusal of a malformed request."""
    return Refusal(HTTPStatus.BAD_REQUEST, sentence)


def busy(sentence: str, retry_after_seconds: float = 1.0) -> Refusal:
    """Return the refusal of a request that may be repeated later."""
    seconds = max(1, round(retry_after_seconds))
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, sentence, {"retry-after": str(seconds)})


_SILENT_SECONDS = 10.0
"""How long a client may send nothing."""
_GRACE_SECONDS, _SLOWEST_BYTES = 20.0, 8192
"""After that long, a client must have sent so many bytes a second."""
_DRAIN_SECONDS, _DRAIN_BYTES = 2.0, 64 * MEBIBYTE
"""How much of a refused body is read, so that the client sees the answer."""
BODY_READ = "patchline.body_read"
"""In the scope of a request: whether its body has been read to its end."""
_SMALL_BYTES = MEBIBYTE
"""Bodies up to this size may use the last quarter of the memory."""
_COMPRESSIONS = {"gzip": 31, "deflate": 15}
"""The window bits of zlib for each content coding."""


class BodyMemory:
    """The memory of all bodies that a server holds; used in the event loop alone.

    Args:
        most: the largest number of bytes of all bodies together.
    """

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0

    @contextmanager
    def held(self) -> Iterator[BodyShare]:
        """Yield the share of one request, which is free again when the block ends."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.used -= share.bytes


class BodyShare:
    """What one request holds."""

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.bytes = 0

    def reserve(self, number: int) -> None:
        """Hold more bytes.

        Raises:
            Refusal: if there is no memory for it at the moment.
        """
        memory = self._memory
        most = memory.most if self.bytes + number <= _SMALL_BYTES else memory.most * 3 // 4
        if memory.used + number > most:
            raise busy("The server holds too many large requests at the moment. Try again.")
        self.bytes += number
        memory.used += number


async def read_body(request: Request, most: int, share: BodyShare) -> bytes:
    """Return the body of a request, decompressed.

    Args:
        request: the request, whose body nobody has read yet.
        most: the largest number of bytes that the body may have.
        share: the memory that the request holds, which grows with its body.

    Raises:
        Refusal: if it is too large, too slow, or damaged.
        ClientDisconnect: if the client has gone.
    """
    stated = _read_stated_length(request)
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("identity", "", *_COMPRESSIONS):
        raise Refusal(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"The content encoding {coding[:40]!r} is not supported. Use gzip, deflate or none.",
        )
    if stated is not None and stated > most:
        raise _too_large(most)
    share.reserve(stated or 0)
    return await _receive(request, most, share, _COMPRESSIONS.get(coding))


async def drain(request: Request) -> bool:
    """Read what is left of a refused body, within limits; return whether that was all of it."""
    received = 0
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while True:
                message = await request.receive()
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return bool(message["type"] == "http.request")
                received += len(message.get("body", b""))
                if received > _DRAIN_BYTES:
                    return False
    except TimeoutError:
        return False


async def _receive(request: Request, most: int, share: BodyShare, window: int | None) -> bytes:
    decompressor = None if window is None else zlib.decompressobj(wbits=window)
    content = bytearray()  # many chunks would hold the memory once more, and leave it in pieces
    received, began = 0, time.monotonic()
    while True:
        message = await _next_message(request)
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunk = message.get("body", b"")
        received += len(chunk)
        if received > most:  # also if it is nothing when decompressed
            raise _too_large(most)
        async for part in _decompress(chunk, decompressor):
            length = len(content) + len(part)
            if length > most:
                raise _too_large(most)
            if length > share.bytes:  # compressed, or sent in chunks without a length
                share.reserve(length - share.bytes)
            content += part
        if not message.get("more_body", False):
            if decompressor is not None and not decompressor.eof:
                raise bad_request("The compressed body ends too early. Send all of it.")
            request.scope[BODY_READ] = True
            return bytes(content)
        seconds = time.monotonic() - began
        if seconds > _GRACE_SECONDS and received < seconds * _SLOWEST_BYTES:
            raise _too_slow()


async def _next_message(request: Request) -> dict[str, Any]:
    try:
        async with asyncio.timeout(_SILENT_SECONDS):
            return dict(await request.receive())
    except TimeoutError:
        raise _too_slow() from None


def _read_stated_length(request: Request) -> int | None:
    given = request.headers.get("content-length")
    return int(given) if given is not None and given.isascii() and given.isdigit() else None


async def _decompress(chunk: bytes, decompressor: Any) -> AsyncIterator[bytes]:
    """Yield what a chunk holds, a MiB at most; other requests are answered in between."""
    if decompressor is None:
        yield chunk
        return
    part = chunk
    while chunk or len(part) == MEBIBYTE:
        try:
            part = decompressor.decompress(chunk, MEBIBYTE)
        except zlib.error:
            raise bad_request(
                "The body is not in its content encoding. Send it as it is."
            ) from None
        if decompressor.unused_data:  # which zlib would keep and copy with each chunk
            raise bad_request("Bytes follow the end of the compressed body. Leave them out.")
        yield part
        chunk = decompressor.unconsumed_tail
        await asyncio.sleep(0)


def _too_large(most: int) -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"The body is larger than the maximum of {most / MEBIBYTE:g} MiB. Send smaller or fewer "
        "images.",
        {"connection": "close"},
    )


def _too_slow() -> Refusal:
    return Refusal(
        HTTPStatus.REQUEST_TIMEOUT,
        "The body arrived too slowly. Send it again over a faster connection, or smaller.",
        {"connection": "close"},
    )


VERSION_HEADER = "patchline-model-version"


def media_type(content_type: str) -> str:
    """Return the type in a Content-Type header, without parameters."""
    return content_type.partition(";")[0].strip().lower()


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Return an object in JSON.

    Half a surrogate pair that a client has sent, which has no UTF-8, becomes its escape again.
    """
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return text.encode(errors="backslashreplace")


def json_response(
    content: Mapping[str, Any],
    version: str | None = None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a JSON answer; its header names the version of the model, too."""
    body = json_bytes(content)
    named = {VERSION_HEADER: version} if version is not None else {}
    return Response(
        body,
        status,
        {"cache-control": "no-store", **named, **(headers or {})},
        media_type="application/json",
    )
