"""The inspection of multi-label data: labels that occur together, rare ones, and contradictions."""

from __future__ import annotations

import html
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, encode_labels, label_pairs
from patchline.pipeline.data.manifests import source_listing
from patchline.pipeline.evaluation.inspection.class_findings import findings_on_sets
from patchline.pipeline.evaluation.inspection.findings import Finding
from patchline.pipeline.evaluation.inspection.inspecting import Inspected, inspect_data
from patchline.pipeline.evaluation.inspection.inspection_report import terminal_report, write_page
from patchline.plugin_api import ImageListing, ListedImage
from tests.pipeline.evaluation.inspection.test_inspecting import scene

Sets = list[tuple[str, ...]]
Inspect = Callable[..., Inspected]


@pytest.fixture
def inspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Inspect:
    """Return a function that inspects images with the given sets; copies have an equal number."""

    def inspect(sets: Sets, numbers: list[int] | None = None, **data: Any) -> Inspected:
        for place, number in enumerate(numbers or list(range(len(sets)))):
            scene(number).save(tmp_path / f"{place:03d}.png")
        images = [
            ListedImage(path=f"{place:03d}.png", label="", labels=names)
            for place, names in enumerate(sets)
        ]
        listing = ImageListing(name="sets", root=tmp_path, images=images)
        for module in (source_listing, ingestion):
            monkeypatch.setattr(module, "listing_of", lambda *_, **__: listing)
        config = RunConfig.model_validate({"data": {"source": "shapes", **data}})
        return inspect_data(config, tmp_path / "work")

    return inspect


def _of_kind(found: Inspected, kind: str) -> Finding:
    (finding,) = [each for each in found.result.findings if each.kind == kind]
    return finding


USUAL: Sets = [("a",), ("b",), ("a", "b"), ("c",), ("b", "c")] * 6


def test_labels_are_counted_by_split_and_in_pairs(inspected: Inspect) -> None:
    """An image counts once in its split, and for each of its labels."""
    result = inspected(USUAL).result
    assert result.classes == {"a": 12, "b": 18, "c": 12}
    assert sum(result.splits.values()) == result.images == 30
    assert sum(result.class_splits["b"].values()) == 18
    assert result.co_occurrence == {"a": {"b": 6}, "b": {"a": 6, "c": 6}, "c": {"b": 6}}
    assert result.set_sizes == {1: 18, 2: 12}
    kinds = {each.kind for each in result.findings}
    assert not kinds & {"no_label", "implied_label", "rare_label_set", "small_class", "imbalance"}


def test_rare_and_missing_labels_are_named(inspected: Inspect) -> None:
    """A label on few images is a warning, no label a note; a run does not stop for them."""
    found = inspected([*USUAL, ("rare",), ("a", "c"), ()])
    small, none = (_of_kind(found, kind) for kind in ("small_class", "no_label"))
    assert (small.severity, small.classes, small.files) == ("warning", ("rare",), ("030.png",))
    assert (none.severity, none.files) == ("note", ("032.png",))
    assert "rare_label_set" not in {each.kind for each in found.result.findings}
    assert not [note for note in found.result.notes if "would stop" in note]


def test_an_image_with_labels_that_avoid_each_other_is_named() -> None:
    """Of 40 images indoor and 40 outdoor, chance would make 20 both; a set is not rare for that."""
    sets: Sets = [("indoor", "cat"), ("outdoor",)] * 39 + [("indoor", "outdoor"), ("cat", "dog")]
    texts = [encode_labels(each) for each in sets]
    rows = pd.DataFrame({"path": [f"{n}.png" for n in range(len(sets))], "label": texts})
    found = findings_on_sets(rows, label_pairs(texts, MULTI_LABEL))
    [rare] = [each for each in found if each.kind == "rare_label_set"]
    assert rare.files == ("78.png",)
    assert "by chance would be on at least 15: indoor + outdoor (1)" in rare.summary


def test_labels_that_hang_together_are_named(inspected: Inspect) -> None:
    """Dogs are always animals here, and everything is a picture."""
    sets: Sets = [("dog", "animal", "picture"), ("animal", "picture"), ("car", "picture")] * 12
    found = inspected([*sets, ("car", "dog")] + [("car", "picture")] * 20)
    assert _of_kind(found, "frequent_label").classes == ("picture",)
    found = inspected([("dog", "animal"), ("animal",), ("car",), ("car",)] * 12)
    assert "another one: dog (with animal)" in _of_kind(found, "implied_label").summary


def test_copies_with_other_labels_are_a_conflict(inspected: Inspect) -> None:
    """The same picture with another set contradicts itself, and is not marked to be excluded."""
    numbers = [*range(30), 0, 1]
    found = inspected([*USUAL, ("a", "b"), ("b",)], numbers)
    conflict = _of_kind(found, "label_conflict")
    assert conflict.groups == (("000.png", "030.png"),)
    assert "as an image with other labels" in conflict.summary
    assert _of_kind(found, "exact_duplicate").exclude in {("001.png",), ("031.png",)}


def test_page_and_terminal_speak_of_labels(inspected: Inspect, tmp_path: Path) -> None:
    """Pairs are in both, and a set is shown as a person reads it."""
    found = inspected([*[("a", "b"), ("<b>", "c")] * 31, ("a", "<b>"), ()])
    write_page(found, tmp_path / "page.html")
    page = html.unescape((tmp_path / "page.html").read_text())
    assert "Labels that occur together" in page
    assert "<b> + a" in page
    assert '["a' not in page
    console = Console(width=120, record=True, file=(tmp_path / "out").open("w"))
    console.print(*terminal_report(found.result))
    text = console.export_text()
    for words in ("with sets of 4 labels", "Images that have two labels", "no label"):
        assert words in text
