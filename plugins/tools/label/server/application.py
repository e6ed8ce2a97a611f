"""The page on which people label images, the interface behind it, and its errors as one sentence.

    GET  /                  the page
    GET  /progress          classes, counts, how images are ordered
    GET  /image/ID?side=800 an image
    POST /next              {"client", "person", "holding", "count"}: the next images
    POST /unsure            likewise: images that were set aside
    POST /answer            {"client", "person", "ids", "verdict", "labels"}
    POST /undo              {"client", "person"}: the last answer of a person is taken back
    POST /classes           {"name"}: a new class

A request never names a path. What changes something is a POST with JSON, which pages of other
origins cannot send (see `pipeline/web/access_control.py`).

Shapes: H, W and C of an image.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import getpass
import heapq
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import cv2
import numpy as np
import pandas as pd
from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from patchline.pipeline.data.config import DataConfig
from patchline.pipeline.data.labels.answers.answer import SOMEBODY, Verdict
from patchline.pipeline.data.pixel_values.file_summary import FileSummary
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.reading.decoding import (
    UndecodableImageError,
    decode_image,
    deep_values,
)
from patchline.pipeline.data.reading.image_file import image_bytes
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.value_ranges.data_values import choose_values
from patchline.pipeline.errors import ConfigError, PipelineError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.web.access_control import AccessControl, is_loopback, read_rest
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.request_body import (
    BodyMemory,
    Refusal,
    bad_request,
    json_response,
    media_type,
    read_body,
)
from patchline.pipeline.web.server_metrics import ServerMetrics
from patchline.pipeline.web.uvicorn_server import ReadyServer, uvicorn_config
from patchline.plugins.tools.label.leases import MOST_EACH, MOST_IMAGES, MOST_TOGETHER
from patchline.plugins.tools.label.pool import Pool, PoolImage
from patchline.plugins.tools.label.session import Offer, Person, Session, TakenError

LARGEST_SIDE = 1600
_SMALL_SIDE = 256
"""Pixels; such images are written without loss."""
_QUALITY = 88
_FILES = 32
"""Of the folder, that say which values of more than 8 bits are black and white."""


class BrowserPicture(NamedTuple):
    """A file for a browser."""

    content: bytes
    media_type: str


def picture(pool: Pool, image: PoolImage, side: int) -> BrowserPicture:
    """Return an image of a folder with at most so many pixels on its longer side.

    Raises:
        UndecodableImageError: with the reason, if it cannot be read.
    """
    some = heapq.nsmallest(_FILES, pool.images.items())
    try:
        mapping = _mapping_of(pool.folder, tuple(each.name for _, each in some))
        return _picture(image.file, side, mapping)
    except UndecodableImageError:  # perhaps because its values are unlike those of the others
        return _picture(image.file, side, _mapping_of(pool.folder, (image.name,)))


@functools.lru_cache(maxsize=64)
def _mapping_of(folder: Path, names: tuple[str, ...]) -> PixelMapping:
    """Return what becomes of the values of images, as a run with these images decides it."""
    rows = []
    for name in names:
        with (
            contextlib.suppress(UndecodableImageError),
            root_image_bytes(folder, name) as data,
            deep_values(data) as values,
        ):
            if values is not None:
                rows.append((name, name, "", FileSummary.of(values).text))
    table = pd.DataFrame(rows, columns=["path", "sha256", "mode", "values"])
    return choose_values(table, folder, DataConfig()).mapping


def _picture(file: Path, side: int, mapping: PixelMapping) -> BrowserPicture:
    with image_bytes(file) as data:
        pixels_HWC = decode_image(data, 3, mapping=mapping)
    try:
        return _encode_picture(pixels_HWC, max(1, min(side, LARGEST_SIDE)))
    except (cv2.error, MemoryError) as error:
        raise UndecodableImageError("the image is too large, or too narrow") from error


def _encode_picture(pixels_HWC: np.ndarray[Any, Any], side: int) -> BrowserPicture:
    height, width = pixels_HWC.shape[:2]
    longer = max(height, width)
    if longer > side:
        size = max(1, round(width * side / longer)), max(1, round(height * side / longer))
        pixels_HWC = cv2.resize(pixels_HWC, size, interpolation=cv2.INTER_AREA)
    colors_HWC = cv2.cvtColor(np.ascontiguousarray(pixels_HWC), cv2.COLOR_RGB2BGR)
    if longer <= _SMALL_SIDE:
        written, content = cv2.imencode(".png", colors_HWC)
        media_type = "image/png"
    else:
        written, content = cv2.imencode(".jpg", colors_HWC, [cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        media_type = "image/jpeg"
    if not written:
        raise UndecodableImageError("the image is too large, or too narrow")
    return BrowserPicture(content.tobytes(), media_type)


logger = logging.getLogger(__name__)

PAGE = Path(__file__).parent / "page"
"""The files of the page; nothing in them is loaded from elsewhere."""
_MOST_BYTES = 1 << 18
_MOST_VALUES = 12_000
"""In a body: each that is wrong is an error of pydantic, which takes long and much memory."""
_MEMORY = 1 << 24
_CLIENT_CLOSED = 499
_SMALLEST_SIDE, _USUAL_SIDE = 32, 800
_Sent = TypeVar("_Sent", bound=FrozenModel)
_Key = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
_Name = Annotated[str, Field(max_length=1000)]


class ImageRequest(FrozenModel):
    """Who asks for images."""

    client: str = Field(pattern="^[0-9A-Za-z-]{8,64}$")
    """Made up by the page: two windows are two clients."""
    person: _Name = ""
    holding: Annotated[tuple[_Key, ...], Field(max_length=MOST_EACH)] = ()
    """Images on the screen, or about to be."""
    count: int = Field(default=1, ge=0, le=MOST_IMAGES)
    look_again: bool = False
    """Whether to look for new images in the folder first."""
    reviewed: Annotated[tuple[_Key, ...], Field(max_length=10_000)] = ()
    """Images that were set aside and that this page has shown again."""


class AnswerRequest(FrozenModel):
    """An answer to an image, and to near duplicates that were shown with it."""

    client: str = Field(pattern="^[0-9A-Za-z-]{8,64}$")
    person: _Name = ""
    ids: Annotated[tuple[_Key, ...], Field(min_length=1, max_length=1 + MOST_TOGETHER)]
    verdict: Verdict
    labels: Annotated[tuple[_Name, ...], Field(max_length=1000)] = ()
    saw_suggestion: bool = False


class NewClass(FrozenModel):
    """A class that somebody typed."""

    name: _Name


def application(session: Session, config: ServingConfig, port: int, folder: str) -> AccessControl:
    """Return the application for a session, behind the doors of a server.

    Args:
        session: the session that all people share.
        config: the server's settings.
        port: the port that the server listens on.
        folder: name of what is labelled, for the page.
    """
    interface = _Interface(session, folder)
    app = Starlette(
        routes=[
            Route("/", _page),
            Route("/progress", interface.progress),
            Route("/image/{key}", interface.image),
            Route("/next", interface.next, methods=["POST"]),
            Route("/unsure", interface.unsure, methods=["POST"]),
            Route("/answer", interface.answer, methods=["POST"]),
            Route("/undo", interface.undo, methods=["POST"]),
            Route("/classes", interface.add_class, methods=["POST"]),
            Mount("/static", StaticFiles(directory=PAGE)),
        ],
        exception_handlers={
            Refusal: _handle_refusal,
            TakenError: _handle_conflict,
            PipelineError: _wrong,
            HTTPException: _http_error,
            ClientDisconnect: _client_gone,
            Exception: _handle_failure,
        },
    )
    app.router.redirect_slashes = False
    return AccessControl(app, config, port, ServerMetrics())


async def _page(_request: Request) -> Response:
    return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})


def _reads(
    kind: type[_Sent],
) -> Callable[
    [Callable[[Any, _Sent, str], dict[str, Any]]], Callable[[Any, Request], Awaitable[Response]]
]:
    """Return a decorator that makes an endpoint: it reads the body, and answers in a thread."""

    def decorated(
        answer: Callable[[Any, _Sent, str], dict[str, Any]],
    ) -> Callable[[Any, Request], Awaitable[Response]]:
        @functools.wraps(answer)
        async def endpoint(interface: Any, request: Request) -> Response:
            sent = await _read_body(request, interface.memory, kind)
            usual = interface.usual_name(request)
            return json_response(await asyncio.to_thread(answer, interface, sent, usual))

        return endpoint

    return decorated


class _Interface:
    """What the page asks for, answered by a session."""

    def __init__(self, session: Session, folder: str) -> None:
        self._session, self._folder = session, folder
        self._user = user_name()
        self.memory = BodyMemory(_MEMORY)

    def usual_name(self, request: Request) -> str:
        """Return the name of a person who types none: the user, unless another machine asks."""
        host = request.client.host if request.client else ""
        return self._user if is_loopback(host) else SOMEBODY

    async def progress(self, request: Request) -> Response:
        """Return how far people are."""
        return json_response(await asyncio.to_thread(self._progress, self.usual_name(request)))

    async def image(self, request: Request) -> Response:
        """Return an image."""
        known = self._session.pool.images.get(request.path_params["key"])
        if known is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        side = request.query_params.get("side", str(_USUAL_SIDE))
        is_number = side.isascii() and side.isdigit() and len(side) <= len(str(LARGEST_SIDE))
        if not (is_number and _SMALLEST_SIDE <= int(side) <= LARGEST_SIDE):
            raise bad_request(f"side must be a number from {_SMALLEST_SIDE} to {LARGEST_SIDE}.")
        try:
            pool = self._session.pool
            shown = await asyncio.to_thread(picture, pool, known, int(side))
        except UndecodableImageError as error:
            self._session.note_unreadable(known.key, str(error))
            raise Refusal(
                HTTPStatus.UNPROCESSABLE_ENTITY, f"{known.name} cannot be read: {error}."
            ) from error
        return Response(
            shown.content, media_type=shown.media_type, headers={"cache-control": "no-store"}
        )

    @_reads(ImageRequest)
    def next(self, sent: ImageRequest, usual_name: str) -> dict[str, Any]:
        """Return the next images."""
        person = Person(sent.client, sent.person or usual_name)
        self._session.look_for_images(now=sent.look_again)
        return self._offers(self._session.next(person, sent.holding, sent.count), usual_name)

    @_reads(ImageRequest)
    def unsure(self, sent: ImageRequest, usual_name: str) -> dict[str, Any]:
        """Return images that were set aside."""
        person = Person(sent.client, sent.person or usual_name)
        return self._offers(
            self._session.unsure(person, sent.holding, sent.count, sent.reviewed), usual_name
        )

    @_reads(AnswerRequest)
    def answer(self, sent: AnswerRequest, usual_name: str) -> dict[str, Any]:
        """Write an answer."""
        if any(key not in self._session.pool.images for key in sent.ids):
            raise ConfigError("The image is not in the folder any more. Reload the page.")
        person = Person(sent.client, sent.person or usual_name)
        self._session.answer(
            person, sent.ids, sent.verdict, sent.labels, saw_suggestion=sent.saw_suggestion
        )
        return {"progress": self._progress(usual_name)}

    @_reads(ImageRequest)
    def undo(self, sent: ImageRequest, usual_name: str) -> dict[str, Any]:
        """Take the last answer of a page back."""
        person = Person(sent.client, sent.person or usual_name)
        offers, words = self._session.undo(person)
        return {**self._offers(offers, usual_name), "taken_back": words}

    @_reads(NewClass)
    def add_class(self, sent: NewClass, usual_name: str) -> dict[str, Any]:
        """Add a class."""
        return {"name": self._session.add_class(sent.name), "progress": self._progress(usual_name)}

    def _offers(self, offers: Sequence[Offer], usual_name: str) -> dict[str, Any]:
        images = [image for offer in offers if (image := self._session.image(offer))]
        return {"images": images, "progress": self._progress(usual_name)}

    def _progress(self, usual_name: str) -> dict[str, Any]:
        page = {
            "folder": self._folder,
            "table": self._session.answers.file.name,
            "usual_name": usual_name,
        }
        return page | self._session.progress()


def user_name() -> str:
    """Return the name of the user whose server it is."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return SOMEBODY


async def _read_body(request: Request, memory: BodyMemory, kind: type[_Sent]) -> _Sent:
    """Return what the body of a request says.

    Raises:
        Refusal: if it is not JSON, or says something else.
    """
    if media_type(request.headers.get("content-type", "")) != "application/json":
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send application/json.")
    with memory.held() as share:
        body = await read_body(request, _MOST_BYTES, share)
    if body.count(b",") > _MOST_VALUES:
        raise Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The body has more than {_MOST_VALUES:,} values. Send fewer at a time.",
        )
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        raise bad_request(f"{place[:80]}: {first['msg'][:200]}.") from error


async def _handle_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)  # noqa: S101 - it is registered for this class
    return await _error(request, error.status, error.sentence)


async def _handle_conflict(request: Request, error: Exception) -> Response:
    return await _error(request, HTTPStatus.CONFLICT, str(error))


async def _wrong(request: Request, error: Exception) -> Response:
    is_users = isinstance(error, ConfigError)
    status = HTTPStatus.BAD_REQUEST if is_users else HTTPStatus.INTERNAL_SERVER_ERROR
    if not is_users:
        logger.warning("%s", error)
    return await _error(request, status, str(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for this class
    sentences = {
        HTTPStatus.NOT_FOUND: "There is nothing at this path.",
        HTTPStatus.METHOD_NOT_ALLOWED: "This path does not accept this method.",
    }
    status = HTTPStatus(error.status_code)
    return await _error(request, status, sentences.get(status, status.phrase))


async def _client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=_CLIENT_CLOSED)


async def _handle_failure(_request: Request, error: Exception) -> Response:
    """Answer what nobody expected."""
    logger.error("A request failed.", exc_info=error)
    sentence = "The server failed. Its log says why."
    return json_response({"error": sentence}, status=HTTPStatus.INTERNAL_SERVER_ERROR)


async def _error(request: Request, status: HTTPStatus, sentence: str) -> Response:
    headers = {"connection": "close"} if await read_rest(request) else {}
    return json_response({"error": sentence}, status=status, headers=headers)


def serve(
    session: Session,
    config: ServingConfig,
    folder: str,
    listening: socket.socket,
    on_ready: Callable[[], None],
) -> None:
    """Serve the page until SIGTERM or SIGINT.

    Args:
        session: the session that all people share.
        config: the server's settings.
        folder: name of what is labelled.
        listening: socket of the server.
        on_ready: called once requests are answered.
    """
    app = application(session, config, listening.getsockname()[1], folder)
    server = ReadyServer(uvicorn_config(app, config), on_ready)
    asyncio.run(server.serve(sockets=[listening]))
