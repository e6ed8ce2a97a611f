"""What all interfaces share: take the body of a request, find its images, and write JSON."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from starlette.requests import Request

from patchline.pipeline.packaging.packaged_model import bytes_of_base64
from patchline.pipeline.registry.serving.engine import TOP_K, Options
from patchline.pipeline.registry.serving.model_host import ModelHost
from patchline.pipeline.web.request_body import (
    BodyMemory,
    BodyShare,
    Refusal,
    bad_request,
    media_type,
    read_body,
)

_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,200})"|([^\s;"]{1,200}))', re.IGNORECASE)
_NAME = re.compile(r';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_LONGEST_HEAD, _MOST_PARTS = 8192, 1024


@dataclass(frozen=True)
class FormPart:
    """One field or file."""

    name: str
    file_name: str | None
    content: bytes


def parts_of(body: bytes, content_type: str) -> list[FormPart]:
    """Return the parts of a form.

    Args:
        body: the body of the request.
        content_type: the value of its header, which names the boundary.

    Raises:
        Refusal: if it is not a whole form.
    """
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise bad_request("The header Content-Type of the form names no boundary.")
    mark = b"--" + (match[1] or match[2]).encode("latin-1")
    position = body.find(mark)
    parts: list[FormPart] = []
    while position >= 0:
        position += len(mark)
        if body.startswith(b"--", position):
            return parts
        end = body.find(b"\r\n" + mark, position)
        if end < 0:
            break
        if len(parts) == _MOST_PARTS:
            raise bad_request(f"The form has more than {_MOST_PARTS} parts. Send fewer at a time.")
        parts.append(_part(body, position, end))
        position = end + 2
    raise bad_request("The form ends too early. Send all of it.")


def _part(body: bytes, start: int, end: int) -> FormPart:
    head_end = body.find(b"\r\n\r\n", start, min(end + 4, start + _LONGEST_HEAD))
    if head_end < 0:
        raise bad_request("A part of the form has no head.")
    head = body[start:head_end].decode("utf-8", errors="replace")
    for line in head.split("\r\n"):
        if line.lower().startswith("content-disposition:"):
            names = {found[1].lower(): found[2] for found in _NAME.finditer(line)}
            if "name" in names:
                return FormPart(names["name"], names.get("filename"), body[head_end + 4 : end])
    raise bad_request("A part of the form has no name.")


OPTIONS = ("top_k", "map", "coverage")
"""Names of the options, in a query, a form or a JSON object."""
MOST_IMAGES = 256
"""In one request."""
JSON, FORM, TENSORS = "application/json", "multipart/form-data", "tensors"
"""Media types of bodies that are more than one image; the last for JSON with tensors behind it."""
_MOST_CLASSES = 1_000_000
_MOST_VALUES, _MOST_DECIMALS = 1_000_000, 1000
_WEIGHTS = {b",": 1, b'"': 1, b"[": 3, b"{": 3, b":": 5}
"""How many values each of these counts as: parsing takes at most 0.2 us and 48 bytes for one."""
_LONGEST_FIELD = 100
_RAW = ("application/octet-stream", "application/x-www-form-urlencoded", "")
"""Types of a raw body beside `image/…`; curl calls one a form unless it is told otherwise."""
_SHOWN = 60
_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off", "")


@dataclass(frozen=True)
class GivenImages:
    """The images of a request, in order."""

    images: list[bytes]
    names: list[str | None]
    """The names of the files, as the client calls them; None for an image without one."""
    options: Options
    is_list: bool
    """Whether the client sent a list, which is answered with a list."""


def read_given_images(body: bytes, content_type: str, query: Mapping[str, str]) -> GivenImages:
    """Return the images of a request.

    Args:
        body: the body of the request.
        content_type: the value of its header; empty without one.
        query: the query parameters of the request's address, which hold the options.

    Raises:
        Refusal: if the body is none of the accepted forms.
    """
    check_names(query, OPTIONS)
    kind = media_type(content_type)
    if kind == JSON:
        return _of_json(body, query)
    if kind == FORM:
        return _of_form(body, content_type, query)
    if kind in _RAW or kind.startswith("image/"):
        if not body:
            raise bad_request("The body is empty. Send an image as the body.")
        return GivenImages([body], [None], options_of(query), is_list=False)
    raise Refusal(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        f"The content type {kind[:_SHOWN]!r} is not accepted. Send an image as the raw body "
        "(image/…), several as multipart/form-data, or base64 in application/json.",
    )


def check_names(given: Mapping[str, Any], accepted: Sequence[str]) -> None:
    """Check the names of the parameters of a request.

    Raises:
        Refusal: if one is unknown.
    """
    unknown = sorted(set(given).difference(accepted))
    if unknown:
        rule = f"Use {', '.join(accepted)}." if accepted else "This path takes none in its query."
        raise bad_request(f"There is no parameter {unknown[0][:_SHOWN]!r}. {rule}")


def options_of(given: Mapping[str, Any]) -> Options:
    """Return the options `top_k`, `map` and `coverage` of a query, a form or a JSON object.

    Raises:
        Refusal: if one has a wrong value.
    """
    return Options(
        _number(given.get("top_k", TOP_K)),
        _truth(given.get("map", False)),
        _share(given.get("coverage")),
    )


def decode_base64(given: object) -> bytes:
    """Return what a text encodes in base64, as every package reads it.

    Raises:
        ValueError: if it is anything else, such as a path or an address, which is never followed.
    """
    if not isinstance(given, str | dict):
        raise ValueError(f"{format_value(given)} is not base64 text")  # noqa: TRY004 - as of other content
    return bytes_of_base64(given)


def json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a body.

    Raises:
        Refusal: if there is none, or if it has so many values that the server would stand still.
    """
    if sum(weight * body.count(mark) for mark, weight in _WEIGHTS.items()) > _MOST_VALUES:
        raise Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"The JSON has more than {_MOST_VALUES:,} values (a text counts as 3, a list as 4, a "
            "key as 8). Send images as files or in base64, or tensors in binary form.",
        )
    decimals = itertools.count()

    def decimal(text: str) -> float:
        if next(decimals) == _MOST_DECIMALS:  # each takes long
            raise bad_request(
                f"The JSON has more than {_MOST_DECIMALS:,} decimal fractions. Send pixels as "
                "whole numbers from 0 to 255."
            )
        return float(text)

    try:  # a shell leaves line ends in texts as they are
        content = json.loads(body, strict=False, parse_float=decimal)
    except (ValueError, RecursionError):
        raise bad_request("The body is not JSON. Send a JSON object.") from None
    if not isinstance(content, dict):
        raise bad_request(f"The body is {format_value(content)} in JSON. Send an object.")
    return content


def _of_json(body: bytes, query: Mapping[str, str]) -> GivenImages:
    content = json_object(body)
    options = options_of({**query, **{k: content[k] for k in OPTIONS if k in content}})
    unknown = sorted(set(content) - {"image", "images", *OPTIONS})
    if unknown or ("image" in content) == ("images" in content):
        known = f"The key {unknown[0][:_SHOWN]!r} is unknown. " if unknown else ""
        raise bad_request(
            f'{known}Send {{"image": BASE64}} or {{"images": [BASE64, …]}}, and top_k, map and '
            "coverage if you need them."
        )
    texts = content["images"] if "images" in content else [content["image"]]
    if not isinstance(texts, list):
        raise bad_request(f"images is {format_value(texts)}. Send a list of base64 texts.")
    check_number(len(texts))
    images = []
    for position, text in enumerate(texts):
        try:
            images.append(decode_base64(text))
        except ValueError as error:
            which = f"images[{position}]" if "images" in content else "image"
            raise bad_request(f"{which}: {error}. Send the bytes of the file in base64.") from None
    return GivenImages(images, [None] * len(images), options, is_list="images" in content)


def _of_form(body: bytes, content_type: str, query: Mapping[str, str]) -> GivenImages:
    parts = parts_of(body, content_type)
    files = [part for part in parts if part.file_name is not None or part.name not in OPTIONS]
    fields = {
        part.name: part.content[:_LONGEST_FIELD].decode("utf-8", errors="replace")
        for part in parts
        if part.file_name is None and part.name in OPTIONS
    }
    check_number(len(files))
    return GivenImages(
        [part.content for part in files],
        [part.file_name for part in files],
        options_of({**query, **fields}),
        is_list=len(files) > 1,
    )


def check_number(images: int) -> None:
    """Check the number of images in a request.

    Raises:
        Refusal: if there are none, or too many.
    """
    if not images:
        raise bad_request("The request has no image. Send at least one.")
    if images > MOST_IMAGES:
        raise bad_request(
            f"The request has {images} images, but at most {MOST_IMAGES} are allowed. Send several "
            "requests."
        )


def _number(given: object) -> int:
    is_number = isinstance(given, int | str) and not isinstance(given, bool)
    text = str(given) if is_number else ""
    if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST_CLASSES:
        return int(text[:9])
    raise bad_request(f"top_k is {format_value(given)}, but must be a number from 1.")


def _truth(given: object) -> bool:
    text = str(given).lower() if isinstance(given, int | str) else "?"
    if text in _YES:
        return True
    if text in _NO:
        return False
    raise bad_request(f"map is {format_value(given)}, but must be true or false.")


def _share(given: object) -> float | None:
    if given is None:
        return None
    try:
        share = float(given) if isinstance(given, int | float | str) else float("nan")
    except (ValueError, OverflowError):
        share = float("nan")
    if not 0 < share < 1:
        raise bad_request(f"coverage is {format_value(given)}, but must be between 0 and 1.")
    return share


def format_value(value: object) -> str:
    """Return a value of JSON as an error names it, however large or deep it is."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value[:_SHOWN]) if isinstance(value, str) else json.dumps(value)[:_SHOWN]


_FEW_BYTES = 1 << 15
"""A larger body is parsed in a thread, so that other requests are read meanwhile."""
MEMORY_FACTOR = 4
"""The bodies of all requests may hold as many times the largest body."""
Parsed = TypeVar("Parsed")


class Server:
    """What the interfaces answer with."""

    def __init__(self, host: ModelHost) -> None:
        self.host = host
        self.memory = BodyMemory(MEMORY_FACTOR * host.config.max_request_bytes)
        self._parsing = asyncio.Lock()

    async def parsed(
        self,
        request: Request,
        share: BodyShare,
        parse: Callable[[bytes], Parsed],
        kind: str | None = None,
    ) -> Parsed:
        """Read the body of a request, and return what it holds.

        One is parsed at a time: while it is, it takes several times its size.

        Args:
            request: a request whose body nobody has read yet.
            share: the request's share of the server's memory, which holds the body.
            parse: returns what a body holds.
            kind: media type that the body is read as; None for that of the request.

        Raises:
            Refusal: if there is no room for it, or something is wrong with it.
        """
        self.host.check_room()
        kind = kind or media_type(request.headers.get("content-type", ""))
        config = self.host.config
        most = config.max_json_bytes if kind == JSON else config.max_request_bytes
        body = await read_body(request, most, share)
        if len(body) <= _FEW_BYTES or kind not in (JSON, FORM, TENSORS):  # others are one image
            return parse(body)
        async with self._parsing:
            return await asyncio.to_thread(parse, body)


def server_of(request: Request) -> Server:
    """Return the server that a request was sent to."""
    server: Server = request.app.state.server
    return server
