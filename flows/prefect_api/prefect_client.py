"""A client of the Prefect server that turns its errors into readable messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, TypeVar

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import get_current_settings

from patchline.pipeline.errors import OrchestrationError

_PAGE = 200
"""The largest page that Prefect's API returns."""
Listed = TypeVar("Listed")


@contextmanager
def open_client() -> Iterator[SyncPrefectClient]:
    """Yield a client of the server in Prefect's settings.

    Raises:
        OrchestrationError: if the server does not answer, refuses, or finds nothing.
    """
    with translate_prefect_errors(), get_client(sync_client=True) as client:
        yield client


@contextmanager
def translate_prefect_errors() -> Iterator[None]:
    """Translate errors of any Prefect client in the block into a readable message.

    Raises:
        OrchestrationError: if the server does not answer, refuses, or finds nothing.
    """
    try:
        yield
    except ObjectNotFound as error:
        raise _make_missing_error() from error
    except PrefectHTTPStatusError as error:
        if error.response.status_code == HTTPStatus.NOT_FOUND:
            raise _make_missing_error() from error
        raise OrchestrationError(
            f"The Prefect server refused the request ({error.response.status_code}: "
            f"{_detail(error.response)}). {_remedy(error.response)}"
        ) from error
    except httpx.HTTPError as error:
        url = get_current_settings().api.url
        raise OrchestrationError(
            f"The Prefect server at {url} does not answer ({error}). Start the servers with "
            "`patchline up`."
        ) from error


def all_pages(read: Callable[[int, int], list[Listed]]) -> list[Listed]:
    """Return all results of a query, page by page.

    Args:
        read: returns a page, given `limit` and `offset`.
    """
    listed: list[Listed] = []
    while True:
        page = read(_PAGE, len(listed))
        listed += page
        if len(page) < _PAGE:
            return listed


def flow_runs(
    client: SyncPrefectClient, filters: Mapping[str, Any], sort: FlowRunSort = FlowRunSort.ID_DESC
) -> list[FlowRun]:
    """Return all flow runs that match a filter.

    Args:
        client: a client of the Prefect server.
        filters: the filter as in Prefect's API, such as `{"state": {"type": {"any_": []}}}`.
        sort: the order of the flow runs.
    """
    chosen = FlowRunFilter.model_validate(filters)
    return all_pages(
        lambda limit, offset: client.read_flow_runs(
            flow_run_filter=chosen, sort=sort, limit=limit, offset=offset
        )
    )


def _make_missing_error() -> OrchestrationError:
    return OrchestrationError(
        "The object no longer exists on the Prefect server. Run `patchline schedule list` to see "
        "what does."
    )


def _detail(response: httpx.Response) -> str:
    try:
        answer = response.json()
    except ValueError:
        return response.reason_phrase
    told = answer if isinstance(answer, dict) else {}
    return str(told.get("detail") or told.get("exception_message") or response.reason_phrase)


def _remedy(response: httpx.Response) -> str:
    if response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
        return "Correct the value that the message names."
    return "See its log, or restart the servers with `patchline down` and `patchline up`."
