"""What a browser would make of a page."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

NASTY = """<b>"><script>alert(1)</script> a & b ' onmouseover='x {{ 7 * 7 }}"""
_STARTS = {
    "data:image/png;base64": b"\x89PNG\r\n\x1a\n",
    "data:image/jpeg;base64": b"\xff\xd8\xff",
    "data:image/svg+xml;base64": b"<?xml",
}
_REFERENCES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class Page(HTMLParser):
    """Tags, what they refer to, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))
        self.ids = [value or "" for name, value in self.attributes if name == "id"]
        self.pictures = [
            each for each in self.references if re.match("data:image/(png|jpeg)", each)
        ]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.references += [value or "" for name, value in attrs if name in _REFERENCES]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def check_self_contained(html: str, folder: Path | None = None) -> Page:
    """Check that a page runs no code and needs no other file, but explanations in its folder."""
    page = Page(html)
    assert html.startswith("<!doctype html>")
    assert {"script", "link", "iframe", "object", "embed", "base", "form"}.isdisjoint(page.tags)
    assert not any(name.startswith("on") for name, _ in page.attributes)
    without_pictures = re.sub(r"data:image/[\w+]+;base64,[A-Za-z0-9+/=]*", "", html)
    assert re.findall(r"https?:|//[a-z]|javascript:|@import", without_pictures) == []
    assert re.findall(r"url\((?!['\"]?data:)", html) == []
    for reference in page.references:
        if reference.startswith("#"):
            assert reference[1:] in page.ids
        elif folder is not None and reference.startswith("explanations/"):
            assert (folder / reference).is_file()
        else:
            kind, _, data = reference.partition(",")
            assert base64.b64decode(data, validate=True).startswith(_STARTS[kind])
    assert len(page.ids) == len(set(page.ids))
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html
    return page
