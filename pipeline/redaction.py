"""Remove secrets from what people see: terminal lines, logs, errors, pages, events, parameters.

A secret is the part before the `@` of an address, the value of a parameter or header with a telling
name (`?token=`, `password=`, `Authorization:`), and the value of an environment variable with a
telling name, or the password of an address in any variable. The value of a variable is searched in
any text only if it cannot be mistaken for a word, a name or a number: see `_is_distinctive`.

What a program reads back, such as the folder of a run, is never rewritten: it is stored as it is,
and only an address loses its credentials (`without_credentials`).
"""

from __future__ import annotations

import base64
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType
from typing import NamedTuple
from urllib.parse import quote, unquote

from patchline.pipeline.terminal_words import visible
from patchline.pipeline.workers.host.output_streams import rewrite_stream

HIDDEN = "***"
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s\"<>]*)")
_PLAIN_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]+)(?::\d*)?")
_WEB = ("http://", "https://", "ws://", "wss://")
_NAMED = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|private[_-]?key"
    r"|account[_-]?key|credentials?|signature|auth(?:orization|[_-]string)?)"
)
_QUERY = re.compile(rf"(?i)([?&;#](?:[\w.-]*?{_NAMED}|sig|key)=)[^\s&;#\"'<>]+")
_SETTING = re.compile(
    r"(?i)(?<![\w.])((?:[a-z]+[_-])?(?:password|passwd|secret|api[_-]?key|access[_-]?key"
    r"|(?:access|auth|api|bearer|refresh|session|id)[_-]?token)[\"']?\s*=\s*[\"']?)[^\s&;,\"'<>)}]+"
)
_NAMED_VALUE = re.compile(
    r"(?i)([\"'](?:[\w-]*?)(?:password|passwd|secret|token|api[_-]?key|access[_-]?key"
    r"|auth[_-]string)[\"']\s*:\s*[\"'])[^\"']+"
)
_HEADER = re.compile(
    r"(?i)((?:authorization|x-api-key|x-auth-token|cookie)[\"']?\s*[:=]\s*[\"']?"
    r"(?:(?:basic|bearer|token|digest)\s+)?)[^\s\"',}]+"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)(?=[\w+/=.~-]*\d)[\w+/=.~-]{8,}")
_SECRET_VARIABLE = re.compile(
    r"(?:^|_)(?:(?:PG)?PASSWORD|MYSQL_PWD|PASSWD|PASSPHRASE|WEBHOOK|SECRET|TOKEN|API_?KEY"
    r"|ACCESS_KEY|PRIVATE_KEY|ENCRYPTION_KEY|AUTH_STRING|AUTHORIZATION)(?:_(?!FILE|PATH|DIR)|$)"
)
_JOINTS = re.compile(r"[-_. /]+")
"""What joins the words in the name of a file, a model or a class."""
_LIKE_A_WORD = re.compile(r"[^\W\d_]*\d*")
_LIKE_A_NUMBER = re.compile(r"[-+.,:/ \d]*")
"""A number, a date or a time."""
_ALPHANUMERIC = re.compile(r"[\w. /-]*")
_SHORTEST, _SHORTEST_ALPHANUMERIC, _SHORTEST_NAME = 6, 8, 20
"""Characters from which a value is distinctive: with other signs, without, and as a name."""


class Credentials(NamedTuple):
    """An address, and the credentials that preceded its host."""

    address: str
    """Without user and password."""
    user: str | None
    password: str | None


def redact_text(text: str) -> str:
    """Return a text without the secrets in it."""
    for secret in _find_known_secrets(tuple(os.environ.items())):
        if secret in text:
            text = text.replace(secret, HIDDEN)
    text = _ADDRESS.sub(lambda match: match[1] + _without_user(match[1], match[2])[0], text)
    for pattern in (_QUERY, _HEADER, _BEARER, _SETTING, _NAMED_VALUE):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def without_credentials(value: str) -> str:
    """Return a value that programs read back: an address without its credentials, or unchanged.

    Paths, names and ids are never rewritten, whatever the environment's secrets are.
    """
    match = _ADDRESS.fullmatch(value)
    if not match:
        return value
    return _QUERY.sub(rf"\1{HIDDEN}", match[1] + _without_user(match[1], match[2])[0])


def redact_values(values: Mapping[str, str]) -> dict[str, str]:
    """Return the same keys, with values without secrets."""
    return {key: redact_text(value) for key, value in values.items()}


def split_credentials(address: str) -> Credentials:
    """Split an address into itself without credentials, the user and the password."""
    match = _ADDRESS.fullmatch(address)
    if not match:
        return Credentials(address, None, None)
    rest, userinfo = _without_user(match[1], match[2])
    if not userinfo:
        return Credentials(address, None, None)
    user, colon, password = userinfo.partition(":")
    return Credentials(match[1] + rest, unquote(user), unquote(password) if colon else None)


def _without_user(scheme: str, rest: str) -> tuple[str, str]:
    """Split what follows `scheme://` into host and path, and user and password.

    A password may contain an unescaped `@`, `/` or `?`. So everything before the last `@` counts,
    except where a web address begins with an ordinary host: then the `@` belongs to its path.
    """
    before, at, after = rest.rpartition("@")
    if not at or rest.startswith("/"):  # `sqlite:///a@b` has no host
        return rest, ""
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if scheme.lower() in _WEB and _PLAIN_HOST.fullmatch(host):
        return rest, ""
    return after, before


@lru_cache(maxsize=4)
def _find_known_secrets(environment: tuple[tuple[str, str], ...]) -> list[str]:
    """Return the secrets in an environment, the longest first."""
    secrets: set[str] = set()
    for name, value in environment:
        if _SECRET_VARIABLE.search(name):
            secrets |= _forms(value)
            user, colon, password = value.partition(":")
            if colon and user and name.endswith("AUTH_STRING"):
                secrets |= _forms(password)
        elif "@" in value and "://" in value:
            password = split_credentials(value).password or ""
            secrets |= _forms(password)
    return sorted(filter(_is_distinctive, secrets), key=len, reverse=True)


def _is_distinctive(secret: str) -> bool:
    """Return whether a secret may be replaced wherever it appears, even inside a word.

    `audit`, `cifar10`, `flowers-2024` and `data/train` appear in ordinary text and in paths. To
    hide them would destroy pages and commands, and tell whoever knows the word the password.
    """
    if _LIKE_A_NUMBER.fullmatch(secret) or all(map(_LIKE_A_WORD.fullmatch, _JOINTS.split(secret))):
        return len(secret) >= _SHORTEST_NAME
    if _ALPHANUMERIC.fullmatch(secret):
        return len(secret) >= _SHORTEST_ALPHANUMERIC
    return len(secret) >= _SHORTEST


def _forms(secret: str) -> set[str]:
    """Return the ways to write a secret: plain, in an address, in a header."""
    coded = base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode()
    escaped = quote(secret.encode("utf-8", "surrogateescape"), safe="")
    return {secret, escaped, repr(secret)[1:-1], coded}


# -- everything that a process logs ------------------------------------------------------------


class RedactedRecord(logging.LogRecord):
    """A log record whose message, traceback and stack reach every handler without secrets.

    Control characters in the message are written out, because a handler may print it.
    """

    def getMessage(self) -> str:  # noqa: N802 - the name is logging's
        """Return the message."""
        return visible(redact_text(super().getMessage()), lines=True)

    @property
    def exc_text(self) -> str | None:  # a formatter caches the traceback here
        """The traceback that belongs to the message."""
        return _redact_optional(self.__dict__.get("exc_text"))

    @exc_text.setter
    def exc_text(self, text: str | None) -> None:
        self.__dict__["exc_text"] = text

    @property
    def stack_info(self) -> str | None:  # the same for a stack
        """The stack that belongs to the message."""
        return _redact_optional(self.__dict__.get("stack_info"))

    @stack_info.setter
    def stack_info(self, text: str | None) -> None:
        self.__dict__["stack_info"] = text


def install(*, streams: bool = False) -> None:
    """Redact everything that this process logs, and tracebacks of uncaught errors.

    Args:
        streams: whether to redact standard error as well, for processes that only we start.
    """
    logging.setLogRecordFactory(RedactedRecord)
    sys.excepthook = _print_redacted
    threading.excepthook = _print_redacted_of_thread
    if streams:
        rewrite_stream("stderr", redact_text)


def _print_redacted(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    text = redact_text("".join(traceback.format_exception(kind, error, trace)))
    sys.stderr.write(visible(text, lines=True))
    sys.stderr.flush()


def _print_redacted_of_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit:
        _print_redacted(failed.exc_type, failed.exc_value, failed.exc_traceback)


def _redact_optional(text: str | None) -> str | None:
    return redact_text(text) if text else text
