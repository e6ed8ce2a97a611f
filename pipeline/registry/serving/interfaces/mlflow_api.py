"""`POST /invocations` and the paths beside it, as MLflow's scoring server answers them.

An image is base64 text, a `data:` address or {"b64": TEXT}, as a package takes it; a path is not
read. The raw bytes of one image are accepted, too.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from patchline.pipeline.registry.serving.engine import Options
from patchline.pipeline.registry.serving.interfaces.answering import (
    OPTIONS,
    check_names,
    check_number,
    decode_base64,
    json_object,
    options_of,
    read_given_images,
    server_of,
)
from patchline.pipeline.web.request_body import bad_request, json_response, media_type

router = APIRouter(tags=["mlflow"])

_COLUMN = "image"
_FORMS = ("dataframe_records", "dataframe_split", "inputs", "instances")


@router.post("/invocations")
async def invocations(request: Request) -> Response:
    """Predict a table with a column `image` of base64 texts."""
    server = server_of(request)
    check_names(request.query_params, ())
    content_type = request.headers.get("content-type", "")
    with server.memory.held() as share:
        rows, options = await server.parsed(
            request, share, lambda body: _rows_of(body, content_type)
        )
        images = [row for row in rows if isinstance(row, bytes)]
        if images:
            answered = await server.host.answers(images, options, request.scope)
            answers, version = iter(answered.answers), answered.version
        else:
            answers, version = iter(()), server.host.served.version
    is_multi_label = server.host.served.package.is_multi_label
    predictions = [
        next(answers) if isinstance(row, bytes) else _unreadable(row, is_multi_label=is_multi_label)
        for row in rows
    ]
    return json_response({"predictions": predictions, "version": version}, version)


@router.get("/ping", include_in_schema=False)
@router.get("/health", include_in_schema=False)
async def ping(request: Request) -> Response:
    """Answer as MLflow's server does once the model is loaded."""
    _ = server_of(request).host.served
    return Response("\n", media_type="application/json")


def _rows_of(body: bytes, content_type: str) -> tuple[list[bytes | str], Options]:
    """Return each row's image, or the reason why it has none.

    Raises:
        Refusal: if the body is no table in one of MLflow's forms.
    """
    if media_type(content_type) != "application/json":
        given = read_given_images(body, content_type, {})
        return list(given.images), given.options
    content = json_object(body)
    forms = [form for form in _FORMS if form in content]
    if len(forms) != 1:
        raise bad_request(
            f"The body needs one of the keys {', '.join(_FORMS)}. Send "
            '{"dataframe_records": [{"image": BASE64}]}.'
        )
    parameters = content.get("params") or {}
    if not isinstance(parameters, dict):
        raise bad_request("params is no object. Send an object, or leave it out.")
    check_names(parameters, OPTIONS)
    values = _column(forms[0], content[forms[0]])
    check_number(len(values))
    return [_image(value) for value in values], options_of(parameters)


def _column(form: str, table: Any) -> list[Any]:
    """Return the values of the column `image`."""
    if form == "dataframe_split" and isinstance(table, dict):
        columns, data = table.get("columns"), table.get("data")
        if isinstance(columns, list) and isinstance(data, list) and _COLUMN in columns:
            position = columns.index(_COLUMN)
            if all(isinstance(row, list) and len(row) == len(columns) for row in data):
                return [row[position] for row in data]
    elif form != "dataframe_split" and isinstance(table, dict) and form != "dataframe_records":
        values = table.get(_COLUMN)
        if values is not None:
            return values if isinstance(values, list) else [values]
    elif form != "dataframe_split" and isinstance(table, list):
        if all(isinstance(row, dict) and _COLUMN in row for row in table):
            return [row[_COLUMN] for row in table]
        if form != "dataframe_records" and all(isinstance(row, str) for row in table):
            return table
    raise bad_request(
        f'{form} has no column \'image\'. Send {{"dataframe_records": [{{"image": BASE64}}]}}.'
    )


def _image(value: object) -> bytes | str:
    try:
        return decode_base64(value)
    except ValueError as error:
        return str(error)


def _unreadable(reason: str, *, is_multi_label: bool) -> dict[str, Any]:
    labels: dict[str, Any] = {"labels": []} if is_multi_label else {}
    return {"label": None, "probability": None, **labels, "top_k": [], "error": reason}
