"""A template that says which part of a path is the label: `{site}/{label}/*`, `{label}_*.jpg`.

It is matched against the whole path below the data's folder, folder by folder. A name in braces is
some text within one folder or file name: `{label}` is the class, `{split}` a split, `{group}` the
group of images that stay in one split, and any other a column of that name. `*` is any text within
one name, `**` any number of folders. Where a template ends with a name in braces, anything may be
below it: `{site}/{label}` means `{site}/{label}/**`.

It is no regular expression, and every path is decided in a time that its length bounds.
"""

from __future__ import annotations

import itertools
import re

LABEL, SPLIT, GROUP = "label", "split", "group"
_TOKEN = re.compile(r"\{([^{}]*)\}|(\*+)|([^{}*]+)|([{}])")
_DEEP = "**"
_MOST_WILDCARDS = 3
"""In one folder or file name, beside a `*` at its end; matching takes at most the third power of
the length of the name."""
_LONGEST_NAME = 255
_LONGEST_PATH = 4096


class PathTemplate:
    """A parsed template.

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
