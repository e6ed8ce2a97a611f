"""Tables for objectives without labels."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.plugins.test_table_source import listed, touched


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("image\n1.jpg\n2.jpg\n", ["", ""]),
        ("image,width,height\n1.jpg,32,24\n2.jpg,64,48\n", ["", ""]),
        ("image,width,species\n1.jpg,32,cat\n2.jpg,64,\n", ["cat", ""]),
    ],
)
def test_a_table_without_labels_is_read_where_none_are_needed(
    tmp_path: Path, text: str, labels: list[str]
) -> None:
    """Nothing is taken for labels that is not named like them; the rest stays columns."""
    touched(tmp_path, "1.jpg", "2.jpg")
    (tmp_path / "x.csv").write_text(text)
    listing = listed(tmp_path / "x.csv", needs_labels=False)
    assert [(each.path, each.label) for each in listing.images] == [
        ("1.jpg", labels[0]),
        ("2.jpg", labels[1]),
    ]
    assert ("width" in listing.columns) == ("width" in text)
