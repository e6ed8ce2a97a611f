"""Write Markdown from templates that lie beside the module that fills them."""

from __future__ import annotations

import functools
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_ADDRESS = re.compile(r"\b(https?|ftp)://|\bwww\.", re.IGNORECASE)


def render_markdown(template: str, package: str, **values: Any) -> str:
    """Return a template with its values, of which a missing one is an error.

    A template passes text that is not ours through the filter `escaped`.

    Args:
        template: the file's name.
        package: beside whose modules the file is.
        values: of the template.
    """
    return _environment(package).get_template(template).render(**values)


@functools.cache
def _environment(package: str) -> Environment:
    environment = Environment(  # noqa: S701 - no HTML
        loader=PackageLoader(package, ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "escaped": escaped,
        "count": "{:,}".format,
        "sentence": sentence,
        "cell": cell,
    }
    return environment


def escaped(text: str) -> str:
    """Return text escaped for Markdown: one line, shown literally, with no links."""
    one_line = _CONTROL.sub(" ", text.encode("utf-8", "backslashreplace").decode())
    marked = _MARKDOWN.sub(r"\\\1", one_line)
    return _ADDRESS.sub(lambda match: re.sub(r"([:.])", r"\\\1", match[0]), marked)


def sentence(clause: str) -> str:
    """Return a clause with a capital letter and a full stop."""
    return f"{clause[:1].upper()}{clause[1:]}."


def cell(text: str) -> str:
    """Return text for a cell of a table, in one line and otherwise as Markdown."""
    return " ".join(text.split()).replace("|", "\\|")
