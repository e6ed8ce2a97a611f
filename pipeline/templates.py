"""Templates that lie beside the modules that fill them: Markdown, lines of a terminal, pages.

A value that is missing is an error. A template has the functions of `terminal_words` and of this
module as filters, and the former as functions, too. A process compiles each template once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from patchline.pipeline import terminal_words
from patchline.pipeline.terminal_words import counted, visible

_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~&$!])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")
_ADDRESS = re.compile(r"\b(https?|ftp)://|\bwww\.", re.IGNORECASE)
_NO_BREAK = "\N{NO-BREAK SPACE}"


def render_markdown(template: str, package: str, /, **values: Any) -> str:
    """Return a template with its values.

    A template passes text that is not ours through the filter `escaped`.

    Args:
        template: the file's name.
        package: beside whose modules the file is.
        values: of the template.
    """
    return _environment(None, package).get_template(template).render(**values)


def render_lines(template: str, package: str, /, **values: Any) -> str:
    """Return the lines of a template, each value of which is made visible, and stays in its line.

    Args:
        template: the file's name.
        package: beside whose modules the file is.
        values: of the template.
    """
    return _environment(_in_one_line, package).get_template(template).render(**values)


def page_environment(*packages: str) -> Environment:
    """Return the environment for the pages beside the modules of some packages.

    Every value is escaped. A browser shows control characters as nothing or as boxes, and obeys
    those that change the direction of text, so they are written out as on a terminal.
    """
    return _environment(_on_page, *packages)


def _in_one_line(value: object) -> str:
    return visible(str(value))


def _on_page(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value, lines=True)
    return value


@functools.cache
def _environment(finalize: Callable[[object], object] | None, *packages: str) -> Environment:
    is_page = finalize is _on_page
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, "") for package in packages]),
        autoescape=is_page,  # noqa: S701 - nothing else is HTML
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not is_page,
    )
    environment.globals |= vars(terminal_words)
    environment.filters |= {
        **vars(terminal_words),
        "cell": cell,
        "count": "{:,}".format,
        "decimal": "{:.3f}".format,
        "escaped": escaped,
        "plural": lambda *words: counted(*words).replace(" ", _NO_BREAK, 1),
        "points": lambda share: f"{100 * share:.1f} points",
        "sentence": sentence,
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
