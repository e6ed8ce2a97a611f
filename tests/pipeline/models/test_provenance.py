"""Tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from patchline.pipeline.models import provenance
from patchline.pipeline.models.provenance import (
    Provenance,
    Published,
    SeenImages,
    as_metadata,
    describe_unused,
    from_metadata,
    provenance_of,
    together,
    unite,
)
from patchline.pipeline.workspace.files.sealed_files import read_tensors, write_tensors

WEIGHTS = {"weight": torch.arange(6.0)}
PUBLISHED = Published(name="timm:vit_small", sha256="0" * 64, license="mit")
NUMBERS = st.lists(st.integers(0, 40), max_size=20)


def images(numbers: list[int], group: str = "") -> pd.DataFrame:
    """Return rows of a manifest."""
    return pd.DataFrame(
        {
            "sha256": [f"file {number}" for number in numbers],
            "pixels": [f"pixels {number}" for number in numbers],
            "group": [group] * len(numbers),
        }
    )


def seen(trained: list[int], selected: list[int]) -> SeenImages:
    """Return the images with these numbers."""
    return SeenImages.of(images(trained), images(selected))


@given(trained=NUMBERS, selected=NUMBERS, other=NUMBERS)
def test_the_record_holds_exactly_what_was_seen(
    trained: list[int], selected: list[int], other: list[int]
) -> None:
    """After a round trip, an image is seen if and only if it was written."""
    before = Provenance(seen(trained, selected), seen(other, []), (PUBLISHED,), ("x.pth",))
    after = from_metadata(as_metadata(before), "x")
    assert after == before
    every = images(list(range(41)))
    assert set(np.flatnonzero(after.images.contain(every))) == {*trained, *selected, *other}
    only = after.images.contain(every, trained_only=True)
    assert set(np.flatnonzero(only)) == {*trained, *other}
    assert set(np.flatnonzero(after.inherited.contain(every))) == set(other)


def test_an_image_is_recognised_by_its_file_or_its_pixels_or_its_group() -> None:
    """One of them is enough, and an empty value is none."""
    known = SeenImages.of(images([1], "patient 7"), images([]))
    table = pd.DataFrame(
        {
            "sha256": ["file 1", "", "other", "another", ""],
            "pixels": ["", "pixels 1", "other", "another", ""],
            "group": ["", "", "patient 7", "patient 8", ""],
        }
    )
    assert known.contain(table).tolist() == [True, True, True, False, False]
    assert known.contain(table, ["sha256", "pixels"]).tolist() == [True, True, False, False, False]
    assert known.contain(table[["sha256"]]).tolist() == [True, False, False, False, False]


def _resaved_with_metadata(file: Path) -> None:
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    save_file({"weight": torch.zeros(6)}, file, metadata=metadata)


def _edited(file: Path) -> None:
    content = file.read_bytes()
    place = content.index(b"patchline.seen.trained") + 27
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: save_file(WEIGHTS, file), "has no record of the images"),
        (_resaved_with_metadata, "has changed since it was saved"),
        (_edited, "has changed since it was saved"),
        (Path.unlink, "has no file model.safetensors"),
    ],
)
def test_a_lost_record_is_unknown(
    tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    """Not empty: a file without a record may have seen anything. Equal records are equal bytes."""
    file, twin = tmp_path / "model.safetensors", tmp_path / "twin.safetensors"
    written = Provenance(seen([1, 2], [3]))
    for each in (file, twin):
        write_tensors(each, WEIGHTS, as_metadata(written))
    assert file.read_bytes() == twin.read_bytes()
    assert list(read_tensors(file)[0]) == ["weight"]
    assert provenance_of(file, "x") == written
    damage(file)
    found = provenance_of(file, "flowers/3")
    assert found.summary.state == "unknown"
    assert words in found.summary.sentence("flowers/3")
    assert "flowers/3" in found.unknown[0]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("patchline.seen.record", "{}!"),
        ("patchline.seen.record", '{"format_version":1,"digests":[1,0,0,0]}'),
        ("patchline.seen.trained", None),
        ("patchline.seen.selected", "no base64"),
    ],
)
def test_a_record_that_cannot_be_read_is_unknown(key: str, value: str | None) -> None:
    """Also one whose parts do not belong together."""
    metadata = {**as_metadata(Provenance(seen([1, 2], [3]))), key: value}
    kept = {name: text for name, text in metadata.items() if text is not None}
    assert from_metadata(kept, "x").summary.state == "unknown"


def test_what_a_stranger_has_written_is_one_line() -> None:
    """A file comes from anywhere, and its texts are shown in terminals and pages."""
    names = (PUBLISHED.model_copy(update={"name": "a\x1b[31m\nb"}),)
    metadata = as_metadata(Provenance(published=names, unknown=("\x1b]0;x\x07" * 200,)))
    found = from_metadata(metadata, "x").summary
    assert found.published[0].name == "a [31m b"
    assert found.unknown[0].isprintable()
    assert len(found.unknown[0]) <= 300
    odd = Provenance.without_record("weights-\udcff.pth")  # a name that is no UTF-8
    assert from_metadata(as_metadata(odd), "x") == odd


def test_too_many_images_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header has a limit, and a part of the images would be read as all of them."""
    monkeypatch.setattr(provenance, "_MOST_DIGESTS", 10)
    kept = from_metadata(as_metadata(Provenance(seen([1, 2, 3], []), seen([4, 5], []))), "x")
    assert kept.summary.is_known
    lost = from_metadata(as_metadata(Provenance(seen([1, 2, 3], []), seen([4, 5, 6], []))), "x")
    assert "too many to record" in lost.summary.sentence("x")


def test_what_is_not_known_is_inherited() -> None:
    """Through any number of training runs, and by every model made from several."""
    unknown, upstream = Provenance.without_record("x.pth"), Provenance(published=(PUBLISHED,))
    first, second = Provenance(seen([1], [2])), Provenance(seen([3], [4]))
    for initial, state in ((unknown, "unknown"), (upstream, "upstream corpus unknown")):
        grandchild = second.from_initial(first.from_initial(initial))
        assert grandchild.summary.state == state
        assert grandchild.images == unite([first.own, second.own])
        ensemble = together([first, grandchild])
        assert ensemble.summary.state == state
        assert "not recorded" in describe_unused(first.summary, ensemble.summary)
    assert together([unknown, upstream]).summary.state == "unknown"
    assert together([first, second]).summary.is_known
    assert describe_unused(first.summary) == "not used for training or model selection"
    assert second.from_initial(upstream).licenses == "mit"
