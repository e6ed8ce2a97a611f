"""`POST /inside`: the answer to one image with what the server's page shows beside it."""

from __future__ import annotations

import dataclasses

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.serving.interfaces.answering import server_of
from patchline.pipeline.serving.interfaces.given_images import given_images
from patchline.pipeline.serving.interfaces.predict_api import one_answer
from patchline.pipeline.serving.refusal import bad_request

router = APIRouter(include_in_schema=False)


@router.post("/inside")
async def inside(request: Request) -> Response:
    """Predict the class of an image, and show the inside of the prediction."""
    server = server_of(request)
    content_type = request.headers.get("content-type", "")
    with server.memory.held() as share:
        given = await server.parsed(
            request, share, lambda body: given_images(body, content_type, request.query_params)
        )
        if given.is_list:
            raise bad_request("One image at a time can be looked into. Send one as the body.")
        options = dataclasses.replace(given.options, with_inside=True)
        answered = await server.host.answers(given.images, options, request.scope)
    return one_answer(server, options, answered)
