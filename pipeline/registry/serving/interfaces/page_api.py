"""`POST /inside`: the answer to one image with what the server's page shows beside it."""

from __future__ import annotations

import dataclasses

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.registry.serving.interfaces.answering import server_of
from patchline.pipeline.registry.serving.interfaces.given_images import GivenImages
from patchline.pipeline.registry.serving.interfaces.predict_api import answered_images, one_answer
from patchline.pipeline.registry.serving.request_options import Options
from patchline.pipeline.web.refusal import bad_request

page_router = APIRouter(include_in_schema=False)


@page_router.post("/inside")
async def inside(request: Request) -> Response:
    """Predict the class of an image, and show the inside of the prediction."""
    given, answered = await answered_images(request, _with_inside)
    return one_answer(server_of(request), _with_inside(given), answered)


def _with_inside(given: GivenImages) -> Options:
    if given.is_list:
        raise bad_request("One image at a time can be looked into. Send one as the body.")
    return dataclasses.replace(given.options, with_inside=True)
