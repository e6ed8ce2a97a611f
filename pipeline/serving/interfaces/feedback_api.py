"""`POST /feedback?label=rose`: an image and its right label, kept for the next training run.

Off unless the server is started with a table. The image is stored beside the table, in the folder
`feedback`, under the digest of its content; the answer is a row of the table.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from http import HTTPStatus
from pathlib import Path
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.files.atomic_files import replacing
from patchline.pipeline.labelling.answer import FEEDBACK, Answer, Suggestion, now
from patchline.pipeline.labelling.answers_table import AnswersTable
from patchline.pipeline.labelling.new_class import checked_class
from patchline.pipeline.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.serving.interfaces.answering import json_response, server_of
from patchline.pipeline.serving.interfaces.given_images import given_images
from patchline.pipeline.serving.refusal import Refusal, bad_request
from patchline.pipeline.serving.request_options import Options

router = APIRouter(include_in_schema=False)

FOLDER = "feedback"
_LEAST_FREE = 1 << 30
"""Bytes of the disk that clients leave."""
_SUFFIXES = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp"}
_LONGEST_NAME = 80


@router.post("/feedback")
async def feedback(request: Request) -> Response:
    """Take the right label of an image."""
    server = server_of(request)
    table: AnswersTable = request.app.state.feedback
    content_type = request.headers.get("content-type", "")
    by = " ".join(request.query_params.get("by", "").split())
    if len(by) > _LONGEST_NAME or not by.isprintable():
        raise bad_request(f"by must have at most {_LONGEST_NAME} characters that can be seen.")
    with server.memory.held() as share:
        given = await server.parsed(
            request, share, lambda body: given_images(body, content_type, {})
        )
        if given.is_list:
            raise bad_request("One image at a time has a label. Send one as the body.")
        answered = await server.host.answers(given.images, Options(), request.scope)
        [answer] = answered.answers
        if answer["error"] is not None:
            sentence = f"The image cannot be read: {answer['error']}."
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, sentence)
        labels = request.query_params.getlist("label")
        try:
            row = await asyncio.to_thread(_kept, table, given.images[0], labels, answer, by)
        except ConfigError as error:
            raise bad_request(str(error)) from error
    return json_response({"path": row.path, "labels": list(row.labels)}, answered.version)


def _kept(
    table: AnswersTable, image: bytes, labels: list[str], answer: dict[str, Any], by: str
) -> Answer:
    """Store an image and its labels.

    Raises:
        ConfigError: if the labels do not fit the task.
        Refusal: if the disk is nearly full.
    """
    if shutil.disk_usage(table.folder).free < _LEAST_FREE + len(image):
        sentence = "The disk of the server is nearly full. Free some space on it."
        raise Refusal(HTTPStatus.INSUFFICIENT_STORAGE, sentence)
    names: list[str] = []
    for label in labels:
        names.append(checked_class(label, [*table.classes, *names]))
    if table.task == SINGLE_LABEL and len(names) != 1:
        raise ConfigError(f"There are {len(names)} labels. Send one as ?label=NAME.")
    path = f"{FOLDER}/{hashlib.sha256(image).hexdigest()[:32]}{_suffix(image)}"
    file = table.folder / path
    if not file.exists():
        with replacing(file) as temporary:
            temporary.write_bytes(image)
    suggestion = _suggestion(answer)
    row = Answer(
        path,
        "label",
        tuple(sorted(set(names))),
        by,
        now(),
        FEEDBACK,
        suggestion.shown(table.task),
        suggestion.probability,
    )
    table.append([row])
    return row


def _suggestion(answer: dict[str, Any]) -> Suggestion:
    if "labels" not in answer:
        return Suggestion((answer["label"],), answer["probability"])
    given = answer["labels"]
    least = min((each["probability"] for each in given), default=0.0)
    return Suggestion(tuple(sorted(each["label"] for each in given)), least)


def _suffix(image: bytes) -> str:
    """Return the suffix of a file; readers tell its format by its content."""
    found = (suffix for start, suffix in _SUFFIXES.items() if image.startswith(start))
    return next(found, ".webp" if image[8:12] == b"WEBP" else ".tif")


def opened_table(file: Path, *, several: bool, classes: list[str]) -> AnswersTable:
    """Open the table for feedback to a model.

    Raises:
        DataError: if the file is another table.
    """
    table = AnswersTable(file, MULTI_LABEL if several else None)
    table.add_classes(classes)
    return table
