"""The page of a comparison needs no other file, runs no code, and says what was found."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from patchline.pipeline.evaluation.comparison import COPY, SEEN_BY_CHAMPION, Comparison, compare
from patchline.pipeline.evaluation.comparison_page import _axis, write_comparison
from patchline.pipeline.evaluation.promotion_decision import Decision, GateResult
from patchline.pipeline.metrics.intervals import MetricEstimate

CLASSES = ("across", "down", "rising")
REFERENCES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}
GATES = (
    GateResult(
        name="better_than_champion", passed=False, value=0.25, threshold=0.05, sentence="a tie"
    ),
    GateResult(name="enough", passed=True, value=4321.0, threshold=None, sentence="they suffice"),
    GateResult(name="package", passed=True, value=None, threshold=None, sentence="it loads"),
)


class _Page(HTMLParser):
    """What a browser would make of a page: tags, what they refer to, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.values: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))
        self.pictures = [link for link in self.references if not link.startswith("#")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]
        self.references += [value or "" for name, value in attrs if name in REFERENCES]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _comparison(
    images: int = 60, classes: tuple[str, ...] = CLASSES, left_out: dict[str, int] | None = None
) -> Comparison:
    """Return a comparison of two models that are right for 60% and 80% of the images."""
    generator = np.random.default_rng(0)
    count = len(classes)
    labels = np.arange(images) % count
    right = [generator.random(images) < share for share in (0.6, 0.8)]
    said = [np.where(hits, labels, (labels + 1) % count) for hits in right]
    probabilities = [0.1 / count + 0.9 * np.eye(count)[answers] for answers in said]
    return compare(
        champion="photos/2",
        challenger="photos/3",
        classes=classes,
        paths=[f"{classes[label]}/{place}.png" for place, label in enumerate(labels)],
        labels_N=labels,
        champion_NK=probabilities[0],
        challenger_NK=probabilities[1],
        left_out={SEEN_BY_CHAMPION: 12, COPY: 3} if left_out is None else left_out,
    )


def _decision(
    *,
    promoted: bool = False,
    forced: bool = False,
    reason: str = "not better",
    name: str = "photos",
) -> Decision:
    return Decision(
        name=name,
        version="3",
        champion="2",
        promoted=promoted,
        forced=forced,
        reason=reason,
        gates=GATES,
        decided_at="2026-01-05T10:20:30Z",
    )


def _noise(position: int) -> np.ndarray[Any, Any]:
    """Return a small image, grey at even positions."""
    generator = np.random.default_rng(position)
    return generator.integers(0, 256, (12, 12, 3 if position % 2 else 1), dtype=np.uint8)


def _html(folder: Path, comparison: Comparison, decision: Decision | None = None) -> str:
    return write_comparison(comparison, decision, folder, _noise).read_text(encoding="utf-8")


def _check_self_contained(html: str) -> None:
    page = _Page(html)
    assert html.startswith("<!doctype html>")
    forbidden = {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert forbidden.isdisjoint(page.tags)
    assert page.handlers == []
    assert all(link.startswith("data:image/") for link in page.pictures)
    without_pictures = re.sub(r"data:image/\w+;base64,[A-Za-z0-9+/=]*", "", html)
    assert re.findall(r"https?:|//[a-z]|javascript:|@import|url\(", without_pictures) == []
    assert "prefers-color-scheme: dark" in html
    assert "width=device-width" in html


@pytest.mark.parametrize("images", [0, 1, 60])
@pytest.mark.parametrize("decided", [False, True])
def test_the_page_needs_nothing_else(tmp_path: Path, images: int, decided: bool) -> None:
    """With and without images and decision the page refers to no other file or host."""
    html = _html(tmp_path, _comparison(images), _decision() if decided else None)
    _check_self_contained(html)
    links = [link[1:] for link in _Page(html).references if link.startswith("#")]
    assert len(links) >= 1
    assert all(f'id="{link}"' in html for link in links)


def test_every_figure_is_on_the_page(tmp_path: Path) -> None:
    """The sentence, the four counts, all classes, the reasons and the numbers left out."""
    found = _comparison()
    text = _Page(_html(tmp_path, found)).text
    assert found.sentence in text
    assert "60 of 75 test images" in text.replace("\xa0", " ")
    for words in (
        f"{found.both_right} both right",
        f"{found.paired.only_a_right} only the champion",
        f"{found.paired.only_b_right} only the challenger",
        f"{found.both_wrong} both wrong",
        f"{SEEN_BY_CHAMPION} 12",
        f"{COPY} 3",
        f"p = {found.paired.p_value:.3f}",
    ):
        assert words in text
    for change in found.by_class:
        difference = f"{100 * change.difference.value:+.1f}".replace("-", "\N{MINUS SIGN}")
        assert difference in text


@pytest.mark.parametrize(
    ("promoted", "forced", "word"),
    [
        (True, False, "✓ Promoted"),
        (True, True, "⚠ Promoted by force"),
        (False, False, "✗ Not promoted"),
    ],
)
def test_the_verdict_comes_first(tmp_path: Path, promoted: bool, forced: bool, word: str) -> None:
    """Verdict and reason are above all metrics, in words and not in colour alone."""
    decision = _decision(promoted=promoted, forced=forced, reason="because of this")
    page = _Page(_html(tmp_path, _comparison(), decision))
    words = [text.strip() for text in page.texts if text.strip()]
    assert words[words.index(word) + 1] == "because of this"
    assert page.text.index(word) < page.text.index("points")


def test_each_gate_says_how_it_ended(tmp_path: Path) -> None:
    """A gate has its result in words, its values where there are some, and its sentence."""
    text = _Page(_html(tmp_path, _comparison(), _decision())).text
    assert "✗ failed better_than_champion 0.25, threshold 0.05 a tie" in text
    assert "✓ passed enough 4321 they suffice" in text
    assert "✓ passed package it loads" in text


@pytest.mark.parametrize(
    "nasty", ["<b>", '"><script>alert(1)</script>', "a & b", "' onmouseover='x", "{{ 7 * 7 }}"]
)
def test_names_are_text_and_never_markup(tmp_path: Path, nasty: str) -> None:
    """Classes, paths, reasons, gates and names appear as they are written."""
    pages = {}
    for name in (nasty, "plain"):
        found = _comparison(classes=(name, "down"), left_out={name: 3})
        found = found.model_copy(update={"champion": name, "challenger": name})
        gate = GATES[0].model_copy(update={"name": name, "sentence": name})
        decision = _decision(reason=name).model_copy(update={"gates": (gate,), "decided_at": name})
        html = _html(tmp_path, found, decision)
        _check_self_contained(html)
        pages[name] = _Page(html)
    assert pages[nasty].tags == pages["plain"].tags
    assert len(pages[nasty].values) == len(pages["plain"].values)
    assert pages[nasty].text.count(nasty) == pages["plain"].text.count("plain") > 20


def test_without_images_the_page_says_why(tmp_path: Path) -> None:
    """An empty comparison shows gates and what was left out, but no figures and no galleries."""
    found = _comparison(0)
    for decision in (None, _decision()):
        page = _Page(_html(tmp_path, found, decision))
        assert found.sentence in page.text
        assert "0 of 15 test images" in page.text.replace("\xa0", " ")
        assert f"{SEEN_BY_CHAMPION} 12" in page.text
        assert "Newly" not in page.text
        assert "svg" not in page.tags
        assert ("Nothing to compare" in page.text) == (decision is None)


def test_the_class_that_lost_most_comes_first(tmp_path: Path) -> None:
    """Classes go from loss to gain; the first 30 are open, the rest folded, the absent counted."""
    classes = tuple(f"class {k:02d}" for k in range(45))
    found = _comparison(400, classes)
    present = tuple(change for change in found.by_class if change.name != "class 07")
    absent = found.by_class[7].model_copy(update={"images": 0})
    found = found.model_copy(update={"by_class": (*present, absent)})
    html = _html(tmp_path, found)
    table = html[html.index('id="classes"') : html.index('id="newly-wrong"')]
    shown = re.findall(r"class \d\d", table)
    change = {row.name: row.difference.value for row in present}
    assert len(shown) == len(change) == 44
    assert [change[name] for name in shown] == sorted(change.values())
    assert table[: table.index("<details>")].count('scope="row"') == 30
    assert "14 more classes" in _Page(html).text.replace("\xa0", " ")
    assert "1 class of the model" in _Page(html).text.replace("\xa0", " ")


def test_small_classes_are_marked(tmp_path: Path) -> None:
    """A class with fewer than twenty images has a mark, in words."""
    assert _html(tmp_path, _comparison(57)).count("few images") == 3
    assert "few images" not in _html(tmp_path, _comparison(60))


def test_pictures_are_the_images(tmp_path: Path) -> None:
    """Each flipped image shows its own pixels, grey or in colour, and what each model said."""
    found = _comparison()
    page = _Page(_html(tmp_path, found))
    flipped = (*found.newly_wrong, *found.newly_right)
    assert len(page.pictures) == len(flipped) > 10
    for image, picture in zip(flipped, page.pictures, strict=True):
        content = base64.b64decode(picture.partition(",")[2], validate=True)
        shown = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
        np.testing.assert_array_equal(shown, np.broadcast_to(_noise(image.position), (12, 12, 3)))
    wrong = found.newly_wrong[0]
    assert f"champion: {wrong.champion_says} ✓" in page.text
    assert f"challenger: {wrong.challenger_says} ✗" in page.text


def test_images_that_are_gone_are_named(tmp_path: Path) -> None:
    """Without pixels the page says so at each image, and keeps its path."""
    found = _comparison()
    for pixels_of in (None, lambda _: None):
        write_comparison(found, None, tmp_path, pixels_of)
        page = _Page((tmp_path / "comparison.html").read_text(encoding="utf-8"))
        flipped = (*found.newly_wrong, *found.newly_right)
        assert page.pictures == []
        assert page.text.count("the image no longer exists") == len(flipped)
        assert all(image.path in page.text for image in flipped)


def test_shown_images_are_told_from_all(tmp_path: Path) -> None:
    """A gallery of more than 24 images says how many there are and how many it shows."""
    found = _comparison(300)
    assert found.paired.only_b_right > 24
    text = _Page(_html(tmp_path, found)).text.replace("\xa0", " ")
    assert f"Newly right: {found.paired.only_b_right} images" in text
    assert "Only the 24" in text


@settings(deadline=None)
@given(ends=st.lists(st.floats(-1, 1), min_size=3, max_size=3).map(sorted))
def test_the_interval_is_drawn_in_proportion(ends: list[float]) -> None:
    """Ends, value and zero lie on the picture, in order, with room for the numbers."""
    low, value, high = ends
    axis = _axis(MetricEstimate(value=value, low=low, high=high, n=9))
    places = [axis.low, axis.value, axis.high]
    assert places == sorted(places)
    assert all(15 <= place <= 85 for place in [*places, axis.zero])
    assert (axis.low - axis.zero) * low >= 0
    assert (axis.high - axis.zero) * high >= 0


def test_files_hold_what_the_page_shows(tmp_path: Path) -> None:
    """Comparison and decision come back equal; without a decision there is no such file."""
    found, decision = _comparison(), _decision()
    page = write_comparison(found, None, tmp_path / "without", None)
    assert sorted(path.name for path in page.parent.iterdir()) == [
        "comparison.html", "comparison.json",
    ]  # fmt: skip
    folder = write_comparison(found, decision, tmp_path / "with", None).parent
    assert Comparison.model_validate_json((folder / "comparison.json").read_text()) == found
    assert Decision.model_validate_json((folder / "decision.json").read_text()) == decision
