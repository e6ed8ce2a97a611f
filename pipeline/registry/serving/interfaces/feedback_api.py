"""`POST /feedback?label=rose`: an image and its right label, kept for the next training run.

With several labels, `label` is repeated, and `none=true` says that an image has none of them. A
name that is no class yet needs `new_class=true`, so that a misspelt one makes none.

Off unless the server is started with a table. The image is stored beside the table, in the folder
`feedback`, under the digest of its content; the answer is a row of the table.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.data.labels.answers.answer import (
    FEEDBACK,
    Answer,
    Suggestion,
    check_class,
    now,
)
from patchline.pipeline.data.labels.answers.answers_table import AnswersTable
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, Task
from patchline.pipeline.errors import ConfigError, PipelineError
from patchline.pipeline.registry.serving.engine import Options
from patchline.pipeline.registry.serving.interfaces.answering import (
    check_names,
    read_given_images,
    server_of,
)
from patchline.pipeline.terminal_words import few_names
from patchline.pipeline.web.request_body import Refusal, bad_request, json_response
from patchline.pipeline.workspace.files.access import check_no_link, check_own_folder
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.workspace_folder import make_private_file

router = APIRouter(include_in_schema=False)

FOLDER = "feedback"
_LEAST_FREE = 1 << 30
"""Bytes of the disk that clients leave."""
_SUFFIXES = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"BM": ".bmp"}
_LONGEST_NAME = 80
_PARAMETERS = ("label", "none", "new_class", "by")


@router.post("/feedback")
async def feedback(request: Request) -> Response:
    """Take the right label of an image."""
    server = server_of(request)
    table: AnswersTable = request.app.state.feedback
    content_type = request.headers.get("content-type", "")
    given_labels = _read_given_labels(request.query_params)
    with server.memory.held() as share:
        given = await server.parsed(
            request, share, lambda body: read_given_images(body, content_type, {})
        )
        if given.is_list:
            raise bad_request("One image at a time has a label. Send one as the body.")
        options = Options(is_traffic=False)  # the image was answered before
        answered = await server.host.answers(given.images, options, request.scope)
        [answer] = answered.answers
        if answer["error"] is not None:
            sentence = f"The image cannot be read: {answer['error']}."
            raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, sentence)
        try:
            classes = server.host.served.package.classes
            row = await asyncio.to_thread(
                _store_answer, table, given.images[0], given_labels, classes, answer
            )
        except ConfigError as error:
            raise bad_request(str(error)) from error
        except PipelineError as error:  # the table or its journal is damaged, or the disk is full
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
    new = [label for label in row.labels if label not in classes]
    said = {"path": row.path, "labels": list(row.labels), "new_classes": new}
    return json_response(said, answered.version)


class _GivenLabels(NamedTuple):
    """What a request says of an image."""

    labels: list[str]
    is_none: bool
    """Whether the image has none of the labels."""
    may_be_new: bool
    """Whether a label may be a new class."""
    by: str


def _read_given_labels(query: QueryParams) -> _GivenLabels:
    """Return what a request says.

    Raises:
        Refusal: if a parameter is unknown, or has a wrong value.
    """
    check_names(query, _PARAMETERS)
    by = " ".join(query.get("by", "").split())
    if len(by) > _LONGEST_NAME or not by.isprintable():
        raise bad_request(f"by must have at most {_LONGEST_NAME} characters that can be seen.")
    return _GivenLabels(
        query.getlist("label"), _truth(query, "none"), _truth(query, "new_class"), by
    )


def _truth(query: QueryParams, name: str) -> bool:
    text = query.get(name, "false").lower()
    if text not in ("true", "false"):
        raise bad_request(f"{name} is '{text[:_LONGEST_NAME]}', but must be true or false.")
    return text == "true"


def _store_answer(
    table: AnswersTable,
    image: bytes,
    given: _GivenLabels,
    classes: Sequence[str],
    answer: dict[str, Any],
) -> Answer:
    """Store an image and its labels.

    Args:
        table: the table of all feedback.
        image: the file.
        given: what the client says of it.
        classes: the model's classes.
        answer: the model's answer for the image.

    Raises:
        ConfigError: if the labels do not fit the task.
        Refusal: if the disk is nearly full.
    """
    if shutil.disk_usage(table.folder).free < _LEAST_FREE + len(image):
        sentence = "The disk of the server is nearly full. Free some space on it."
        raise Refusal(HTTPStatus.INSUFFICIENT_STORAGE, sentence)
    table.refresh()
    names = _check_labels(given, list(dict.fromkeys((*classes, *table.classes))), table.task)
    path = f"{FOLDER}/{hashlib.sha256(image).hexdigest()[:32]}{_suffix(image)}"
    file = table.folder / path
    if not file.exists():
        with replace_file(file) as temporary:
            make_private_file(temporary)
            temporary.write_bytes(image)
    suggestion = _suggestion(answer)
    row = Answer(
        path,
        "label",
        tuple(sorted(names)),
        given.by,
        now(),
        FEEDBACK,
        suggestion.shown(table.task),
        suggestion.probability,
    )
    table.append([row])
    return row


def _check_labels(given: _GivenLabels, classes: list[str], task: Task) -> set[str]:
    """Return the labels of an image as they are written.

    Raises:
        ConfigError: if they do not fit the task, or one is a new class that nobody asked for.
    """
    names: set[str] = set()
    for label in given.labels:
        names.add(check_class(label, [*classes, *names]))
    new = sorted(names.difference(classes))
    if new and not given.may_be_new:
        raise ConfigError(
            f"There is no class '{new[0]}' ({few_names(classes)}). Correct the "
            "label, or add new_class=true if it is a new class."
        )
    if task == MULTI_LABEL and given.is_none == bool(names):
        raise ConfigError(
            "Send each label as label=NAME, or none=true if the image has none of them."
        )
    if task != MULTI_LABEL and (given.is_none or len(names) != 1):
        said = "none=true" if given.is_none else f"{len(names)} labels"
        raise ConfigError(f"An image has exactly one class here, not {said}. Send ?label=NAME.")
    return names


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


def open_table(file: Path, *, several: bool, classes: list[str]) -> AnswersTable:
    """Open the table for feedback to a model.

    Raises:
        ConfigError: if others may write to its folder, or to that of the images.
        DataError: if the file is another table.
    """
    images = file.absolute().parent / FOLDER
    check_no_link(images, "--feedback")
    if images.exists():
        check_own_folder(images, "The folder of --feedback", "name a table in another folder")
    table = AnswersTable(file, MULTI_LABEL if several else None)
    table.add_classes(classes)
    return table
