"""How users refer to a registered model: `flowers`, `flowers@champion`, `flowers/3`."""

from __future__ import annotations

import re
from typing import NamedTuple

from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.registry.history import CHAMPION

_REFERENCE = re.compile(
    r"^(?:models:/)?(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)"
    r"(?:@(?P<alias>[A-Za-z][A-Za-z0-9_-]*)|/(?P<version>\d+))?$"
)


class ParsedReference(NamedTuple):
    """What a reference such as `flowers@champion` says, before the registry is asked."""

    name: str
    alias: str | None
    """None if it names a version."""
    version: str | None


def parsed(reference: str) -> ParsedReference:
    """Return the parts of a reference; a name alone means the champion.

    Raises:
        ModelReferenceError: if the reference is malformed.
    """
    name, at, number = reference.partition("@")
    if at and number.isdigit():
        raise ModelReferenceError(f"Write a version as {name}/{number}, not {reference}.")
    match = _REFERENCE.match(reference)
    if match is None:
        raise ModelReferenceError(
            f"'{reference}' is not a model reference. Write NAME, NAME@ALIAS, NAME/VERSION or "
            "models:/NAME@ALIAS."
        )
    alias = None if match["version"] else match["alias"] or CHAMPION
    return ParsedReference(match["name"], alias, match["version"])
