"""The page of a comparison needs no other file, runs no code, and says what was found."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.evaluation.comparison import (
    COPY,
    SEEN_BY_CHAMPION,
    Comparison,
    ComparisonSubject,
    compare,
)
from patchline.pipeline.evaluation.comparison_page import write_comparison
from patchline.pipeline.evaluation.promotion_decision import GateResult, PromotionDecision
from tests.pipeline.evaluation.pages import NASTY, Page, check_self_contained

CLASSES = ("across", "down", "rising")
GATES = (
    GateResult(
        name="better_than_champion", passed=False, value=0.25, threshold=0.05, sentence="a tie"
    ),
    GateResult(name="enough", passed=True, value=4321.0, threshold=None, sentence="they suffice"),
    GateResult(name="package", passed=True, value=None, threshold=None, sentence="it loads"),
)


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
        ComparisonSubject(
            champion="photos/2",
            challenger="photos/3",
            classes=classes,
            left_out={SEEN_BY_CHAMPION: 12, COPY: 3} if left_out is None else left_out,
        ),
        paths=[f"{classes[label]}/{place}.png" for place, label in enumerate(labels)],
        labels_N=labels,
        champion_NK=probabilities[0],
        challenger_NK=probabilities[1],
    )


def _decision(**changes: Any) -> PromotionDecision:
    decided: dict[str, Any] = {"name": "photos", "version": "3", "champion": "2", "gates": GATES}
    decided |= {"promoted": False, "reason": "not better", "decided_at": "2026-01-05T10:20:30Z"}
    return PromotionDecision.model_validate(decided | changes)


def _noise(position: int) -> np.ndarray[Any, Any]:
    """Return a small image, grey at even positions."""
    generator = np.random.default_rng(position)
    return generator.integers(0, 256, (12, 12, 3 if position % 2 else 1), dtype=np.uint8)


def _page(comparison: Comparison, decision: PromotionDecision | None = None) -> Page:
    file = write_comparison(comparison, decision, Path(), _noise)
    page = check_self_contained(file.read_text("utf-8"))
    page.text = page.text.replace("\xa0", " ")
    return page


def test_every_figure_is_on_the_page() -> None:
    """The sentence, the four counts, all classes, the reasons and the numbers left out."""
    found = _comparison()
    text = _page(found).text
    for words in (
        found.sentence,
        "60 of 75 test images",
        f"{found.both_right} both right",
        f"{found.paired.only_a_right} only the champion",
        f"{found.paired.only_b_right} only the challenger",
        f"{found.both_wrong} both wrong",
        f"{SEEN_BY_CHAMPION} 12",
        f"{COPY} 3",
        f"p = {found.paired.p_value:.3f}",
        *(
            f"{100 * each.difference.value:+.1f}".replace("-", "\N{MINUS SIGN}")
            for each in found.by_class
        ),
    ):
        assert words in text


@pytest.mark.parametrize(
    ("promoted", "forced", "word"),
    [
        (True, False, "✓ Promoted"),
        (True, True, "⚠ Promoted by force"),
        (False, False, "✗ Not promoted"),
    ],
)
def test_the_verdict_comes_first(promoted: bool, forced: bool, word: str) -> None:
    """Verdict and reason are above all metrics, in words; each gate says how it ended."""
    decision = _decision(promoted=promoted, forced=forced, reason="because of this")
    text = _page(_comparison(), decision).text
    assert text.index(f"{word} because of this") < text.index("points")
    assert "✗ failed better_than_champion a tie" in text
    assert "✓ passed enough they suffice" in text
    assert "✓ passed package it loads" in text


def test_names_are_text_and_never_markup() -> None:
    """Classes, paths, reasons, gates and names appear as they are written."""
    pages = []
    for name in (NASTY, "plain"):
        found = _comparison(classes=(name, "down"), left_out={name: 3})
        found = found.model_copy(update={"champion": name, "challenger": name})
        gate = GATES[0].model_copy(update={"name": name, "sentence": name})
        pages.append(_page(found, _decision(reason=name, gates=(gate,), decided_at=name)))
    nasty, plain = pages
    assert (nasty.tags, len(nasty.attributes)) == (plain.tags, len(plain.attributes))
    assert nasty.text.count(NASTY) == plain.text.count("plain") > 20


def test_without_images_the_page_says_why() -> None:
    """An empty comparison shows gates and what was left out, but no figures and no galleries."""
    found = _comparison(0)
    for decision in (None, _decision()):
        page = _page(found, decision)
        for words in (found.sentence, "0 of 15 test images", f"{SEEN_BY_CHAMPION} 12"):
            assert words in page.text
        assert "Newly" not in page.text
        assert "svg" not in page.tags
        assert ("Nothing to compare" in page.text) == (decision is None)


def test_pictures_are_the_images() -> None:
    """Each flipped image shows its own pixels, grey or in colour, and what each model said."""
    found = _comparison()
    page = _page(found)
    flipped = (*found.newly_wrong, *found.newly_right)
    assert len(page.pictures) == len(flipped) > 10
    for image, picture in zip(flipped, page.pictures, strict=True):
        content = io.BytesIO(base64.b64decode(picture.partition(",")[2]))
        shown = np.asarray(Image.open(content).convert("RGB"))
        np.testing.assert_array_equal(shown, np.broadcast_to(_noise(image.position), (12, 12, 3)))
    wrong = found.newly_wrong[0]
    assert f"champion: {wrong.champion_says} ✓" in page.text
    assert f"challenger: {wrong.challenger_says} ✗" in page.text


def test_images_that_are_gone_are_named(tmp_path: Path) -> None:
    """Without pixels the page says so at each image, and keeps its path."""
    found = _comparison()
    for pixels_of in (None, lambda _: None):
        page = Page(write_comparison(found, None, tmp_path, pixels_of).read_text("utf-8"))
        flipped = (*found.newly_wrong, *found.newly_right)
        assert page.pictures == []
        assert page.text.count("the image no longer exists") == len(flipped)
        assert all(image.path in page.text for image in flipped)
