"""The parts of a multipart form (RFC 7578) whose body is in memory already."""

from __future__ import annotations

import re
from dataclasses import dataclass

from patchline.pipeline.web.refusal import bad_request

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
        body: of the request.
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
