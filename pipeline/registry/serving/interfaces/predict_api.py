"""`POST /predict`: one image or several, as a raw body, a form, or base64 in JSON."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.registry.serving.interfaces.answering import Server, server_of
from patchline.pipeline.registry.serving.interfaces.given_images import GivenImages, given_images
from patchline.pipeline.registry.serving.model_host import Answers
from patchline.pipeline.registry.serving.request_options import Options
from patchline.pipeline.web.json_bodies import json_response

router = APIRouter(tags=["predict"])

_OWN_KEYS = ("label", "probability", "top_k", "error", "failed")


@router.post("/predict")
async def predict(request: Request) -> Response:
    """Predict the class of an image, or of several."""
    server = server_of(request)
    given, answered = await answered_images(request, lambda given: given.options)
    if given.is_list:
        content = {
            "answers": _answers_as_json(given, answered),
            "version": answered.version,
            "model": server.host.name,
        }
        return json_response(content, answered.version)
    return one_answer(server, given.options, answered)


async def answered_images(
    request: Request, options_of: Callable[[GivenImages], Options]
) -> tuple[GivenImages, Answers]:
    """Return the images of a request, and their answers.

    Args:
        request: with a raw body, a form, or base64 in JSON.
        options_of: returns the options to answer with, or refuses the images.
    """
    server = server_of(request)
    content_type = request.headers.get("content-type", "")
    with server.memory.held() as share:
        given = await server.parsed(
            request, share, lambda body: given_images(body, content_type, request.query_params)
        )
        options = options_of(given)
        return given, await server.host.answers(given.images, options, request.scope)


def one_answer(server: Server, options: Options, answered: Answers) -> Response:
    """Return the answer to the only image of a request, or why it cannot be read."""
    [answer] = answered.answers
    if answer["error"] is not None:
        content = {"error": f"The image cannot be read: {answer['error']}."}
        return json_response(
            {**content, "version": answered.version},
            answered.version,
            status=HTTPStatus.UNPROCESSABLE_ENTITY,
        )
    single = {
        **shown(answer, with_map=options.with_map),
        "version": answered.version,
        "model": server.host.name,
    }
    return json_response(single, answered.version)


def _answers_as_json(given: GivenImages, answered: Answers) -> list[dict[str, Any]]:
    listed = []
    for name, answer in zip(given.names, answered.answers, strict=True):
        file = {} if name is None else {"file": name}
        listed.append(
            {**file, **shown(answer, with_map=given.options.with_map), "error": answer["error"]}
        )
    return listed


def shown(answer: dict[str, Any], *, with_map: bool) -> dict[str, Any]:
    """Return an answer of the package as `/predict` writes it.

    Args:
        answer: of the package.
        with_map: whether the request asked where the model looked.
    """
    return {
        "label": answer["label"],
        "probability": answer["probability"],
        "top": answer["top_k"],
        "set": None,
        "coverage": None,
        "warnings": [],
        **({"map": None} if with_map else {}),
        **{key: value for key, value in answer.items() if key not in _OWN_KEYS},
    }
