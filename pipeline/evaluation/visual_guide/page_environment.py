"""How the templates of pages are read: every value is escaped, a missing one is an error."""

from __future__ import annotations

import functools

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from patchline.pipeline.terminal_words import visible


@functools.cache
def page_environment(*packages: str) -> Environment:
    """Return the environment for the templates beside the modules of some packages.

    A process compiles each template once.

    A browser shows control characters as nothing or as boxes, and obeys those that change the
    direction of text, so they are written out as on a terminal.
    """
    return Environment(
        loader=ChoiceLoader([PackageLoader(package, "") for package in packages]),
        autoescape=True,
        finalize=_make_visible,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _make_visible(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value, lines=True)
    return value
