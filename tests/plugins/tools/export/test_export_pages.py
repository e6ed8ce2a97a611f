"""What an export writes on a version's page, beside what people have written there."""

from __future__ import annotations

import pytest

from patchline.plugins.tools.export.export_pages import _section, _with_section

ROW = {
    "refused": False, "same": [1.0, 0.9, 1.0], "images": 42, "largest": 0.01, "bytes": 2_000_000,
    "processor": "a processor", "folder": "exports/int8-1", "batches": {"1": [2.0, 4.0]},
}  # fmt: skip
OLD, NEW = _section({"int8": ROW}), _section({"int8": ROW, "onnx": ROW})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("A model of flowers.", ""),
        ("A model of flowers.", "### Contact\n\nAsk Anna."),
        ("", "Ask Anna before you serve it.\n\n| my | table |\n|---|---|"),
        ("### Exports of the farm\n\nTulips.", "#### Exports by hand\n\nnone"),
    ],
)
def test_what_people_have_written_stays(before: str, after: str) -> None:
    """Only the earlier section is replaced, also as a browser's line ends leave it."""
    old = "\n\n".join(filter(None, (before, OLD, after)))
    new = "\n\n".join(filter(None, (before, NEW, after)))
    assert _with_section(old, NEW) == new
    assert _with_section(new, NEW) == new
    found = _with_section(old.replace("\n", "\r\n"), NEW)
    assert found.replace("\r\n", "\n") == new


def test_a_section_that_finds_no_room_is_left_out() -> None:
    """The person's text is the more important one."""
    text = "long " * 700
    assert _with_section(f"{text}\n\n{OLD}\n\nThe end.", NEW * 3) == f"{text.rstrip()}\n\nThe end."
