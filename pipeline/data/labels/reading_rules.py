"""Settings that say how labels are read from paths and tables, and which files are skipped.

A template such as `{site}/{label}/*` or `{label}_*.jpg` says which part of a path is the label. It
is matched against the whole path below the data's folder, folder by folder. A name in braces is
some text within one folder or file name: `{label}` is the class, `{split}` a split, `{group}` the
group of images that stay in one split, and any other a column of that name. `*` is any text within
one name, `**` any number of folders. Where a template ends with a name in braces, anything may be
below it: `{site}/{label}` means `{site}/{label}/**`.

A template is no regular expression, and every path is decided in a time that its length bounds.
"""

from __future__ import annotations

import codecs
import itertools
import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from patchline.pipeline.frozen_model import DocumentedModel
from patchline.pipeline.workspace.files.folder_walk import DEFAULT

LABEL, SPLIT, GROUP = "label", "split", "group"
_TOKEN = re.compile(r"\{([^{}]*)\}|(\*+)|([^{}*]+)|([{}])")
_DEEP = "**"
_MOST_WILDCARDS = 3
"""In one folder or file name, beside a `*` at its end; matching takes at most the third power of
the length of the name."""
_LONGEST_NAME = 255
_LONGEST_PATH = 4096


class PathTemplate:
    """A parsed template, such as `{site}/{label}/*`.

    Raises:
        ValueError: with the rule that the text breaks.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        parts = text.strip("/").split("/")
        if re.fullmatch(r"\{\w+\}", parts[-1]):
            parts.append(_DEEP)
        self.names: list[str] = []
        """The names in braces."""
        pieces = [
            self._part(part, is_last=place == len(parts) - 1) for place, part in enumerate(parts)
        ]
        if LABEL not in self.names:
            raise ValueError(
                "it has no {label}; use auto, top, leaf, or a pattern with {label} in place of the "
                "class, such as {site}/{label}/*"
            )
        if len(self.names) != len(set(self.names)):
            raise ValueError("it has the same name in braces twice; use each name once")
        if parts.count(_DEEP) > 1 + (parts[-1] == _DEEP):
            raise ValueError("it has ** several times; use it once")
        self._pattern = re.compile("".join(pieces))

    def match(self, path: str) -> dict[str, str] | None:
        """Return the text of each name in braces; None if the path is of another form."""
        if len(path) > _LONGEST_PATH or max(map(len, path.split("/"))) > _LONGEST_NAME:
            return None
        match = self._pattern.fullmatch(path)
        return match.groupdict() if match else None

    def _part(self, part: str, *, is_last: bool) -> str:
        """Return the regular expression of one folder, with its slash, or of the file."""
        if part == _DEEP:
            return ".+" if is_last else "(?:[^/]+/)*"
        if not part:
            raise ValueError("it has two slashes in a row; write one")
        tokens = _TOKEN.findall(part)
        wild = [token for token in tokens if not token[2]]
        if any(token[3] for token in tokens):
            raise ValueError("it has a brace without its partner; write {label}")
        if len(wild) - (tokens[-1][1] != "") > _MOST_WILDCARDS:
            raise ValueError(
                f"'{part}' has more than {_MOST_WILDCARDS} names in braces and stars; use fewer"
            )
        pairs = itertools.pairwise(tokens)
        if any(not one[2] and not other[2] for one, other in pairs):
            raise ValueError(
                f"'{part}' has no text between two names in braces or stars; put some there"
            )
        return "".join(map(self._token, tokens)) + ("" if is_last else "/")

    def _token(self, token: tuple[str, str, str, str]) -> str:
        name, star, literal, _ = token
        if literal:
            return re.escape(literal)
        if star:
            return "[^/]*"
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"'{{{name}}}' is not a name; use letters, digits and underscores")
        self.names.append(name)
        # the label takes as much as it can: `{label}_*` of `great_dane_1.jpg` is great_dane
        return f"(?P<{name}>[^/]+{'' if name == LABEL else '?'})"


AUTO, TOP, LEAF = "auto", "top", "leaf"
NONE, SPACE, LIST = "none", "space", "list"
_HEADERS = Literal["auto", "true", "false"]


def _switch_word(value: object) -> object:
    """Return a switch, which YAML writes without quotes, as the word that it is."""
    return str(value).lower() if isinstance(value, bool) else value


def _is_label_rule(value: str) -> str:
    if value not in (AUTO, TOP, LEAF):
        PathTemplate(value)
    return value


def _is_encoding(value: str) -> str:
    try:
        codecs.lookup(value)
    except (LookupError, ValueError) as error:
        raise ValueError(
            "that is not an encoding that Python knows; use one such as cp437, cp932, gbk or cp1252"
        ) from error
    return value


def _is_text_encoding(value: str) -> str:
    if not getattr(codecs.lookup(_is_encoding(value)), "_is_text_encoding", True):
        raise ValueError("that is not an encoding of text; use one such as utf-16 or latin-1")
    return value


def _is_separator(value: str) -> str:
    if not value:
        raise ValueError("it is empty; use a text such as |, or space, list, none or auto")
    return value if value.strip() or value == "\t" else SPACE


class ReadingRules(DocumentedModel):
    """How the labels of a data source are read, and which of its files are skipped."""

    label: Annotated[str, AfterValidator(_is_label_rule)] = AUTO
    """Which part of a path is the class: top, the class folder, also if folders in it look like
    classes; leaf, the innermost folder; or a pattern such as {site}/{label}/* or {label}_*.jpg; by
    default the class folder or the table's column, and a question where that is not clear."""

    merge_classes: bool = False
    """Merge classes whose names differ only in upper and lower case, spaces, dashes, invisible
    characters or letters that look alike, and numbers in a table that are written differently; by
    default such classes are named, and such numbers a question."""

    no_label: tuple[str, ...] = (DEFAULT,)
    """Cells of a label column, in upper or lower case, that mean that an image has no label;
    default stands for the usual ones, such as nan, null and ?."""

    label_separator: Annotated[str, AfterValidator(_is_separator)] = AUTO
    """What separates several labels in one cell of a table: a text such as | or ;, or space; list
    for lists such as ["a", "b"]; none if each cell is one label, as it is written; by default told
    by the cells, and a question where that is not clear."""

    label_columns: tuple[str, ...] = ()
    """Columns of a table that each stand for a label, with 1 for the images that have it and 0 for
    the others; by default guessed, if all other columns are like that."""

    boxes: Literal["ask", "labels", "ignore"] = "ask"
    """What boxes and other regions in the export of a labelling tool mean: labels, their classes
    are the labels of their image; ignore, nothing; by default a question."""

    root: str | None = None
    """Folder of the images that the export of a labelling tool names by paths or addresses, which
    are searched for below it; by default the folder of the export. Nothing is fetched."""

    encoding: Annotated[str, AfterValidator(_is_text_encoding)] | None = None
    """Encoding of a table's text, such as utf-16, latin-1, cp1252 or cp932; by default UTF-8, or
    UTF-16 if the file begins with its byte-order mark."""

    header: Annotated[_HEADERS, BeforeValidator(_switch_word)] = "auto"
    """Whether the first line of a CSV or TSV file names the columns; by default it does unless it
    names an image."""

    name_encoding: Annotated[str, AfterValidator(_is_encoding)] | None = None
    """Encoding of the names in an archive that does not declare it, such as cp932, gbk or cp1252;
    by default UTF-8, or cp437 if that is not possible."""

    ignore: tuple[str, ...] = (DEFAULT,)
    """Names of files and folders to skip, with the wildcards * and ?; a folder ends in a slash;
    default stands for what other programs leave beside images, such as thumbnails."""
