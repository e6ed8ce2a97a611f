"""Why a request is not answered: a status and one sentence, without paths of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus


class Refusal(Exception):  # noqa: N818 - the word for it; nothing is wrong with the server
    """A request that is answered with an error.

    Args:
        status: of the answer.
        sentence: the value, the rule, the remedy.
        headers: further headers of the answer.
    """

    def __init__(
        self, status: HTTPStatus, sentence: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence
        self.headers = dict(headers or {})


def bad_request(sentence: str) -> Refusal:
    """Return the refusal of a malformed request."""
    return Refusal(HTTPStatus.BAD_REQUEST, sentence)


def busy(sentence: str, retry_after_seconds: float = 1.0) -> Refusal:
    """Return the refusal of a request that may be repeated later."""
    seconds = max(1, round(retry_after_seconds))
    return Refusal(HTTPStatus.SERVICE_UNAVAILABLE, sentence, {"retry-after": str(seconds)})
