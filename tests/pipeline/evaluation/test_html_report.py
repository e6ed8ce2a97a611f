"""The HTML report needs no other file, runs no code, and says what the figures say."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pipeline.evaluation.html_report import ReportPage, write_html
from pipeline.evaluation.report import EvaluationReport
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import random_images, report_of

CLASSES = ("across", "down", "rising")
PNG_START = b"\x89PNG\r\n\x1a\n"
REFERENCES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class _Page(HTMLParser):
    """What a browser would make of a page: tags, what they refer to, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in REFERENCES]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _html(
    folder: Path,
    report: EvaluationReport,
    *,
    channels: int = 3,
    page: ReportPage | None = None,
    figures: dict[str, Path] | None = None,
) -> str:
    page = page or ReportPage(title="photos: test report", facts={}, notes=(), settings={})
    rows = 2 * sum(figures.images for figures in report.by_class)
    images = random_images(rows, channels)
    write_html(report, page, images, figures or {}, folder / "report.html")
    return (folder / "report.html").read_text(encoding="utf-8")


def _check_self_contained(html: str) -> None:
    page = _Page(html)
    assert html.startswith("<!doctype html>")
    forbidden = {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert forbidden.isdisjoint(page.tags)
    assert page.handlers == []
    assert re.findall(r"https?:|//[a-z]|javascript:|@import", _without_pictures(html)) == []
    assert re.findall(r"url\((?!['\"]?data:)", html) == []
    for reference in page.references:
        kind, _, data = reference.partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data, validate=True).startswith(PNG_START)


def _without_pictures(html: str) -> str:
    return re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]*", "", html)


def test_the_report_of_a_real_run_needs_nothing_else(finished_run: Run) -> None:
    """The page of a real run refers to no other file or host and holds no script."""
    html = Path(str(finished_run.summary["report"])).read_text(encoding="utf-8")
    _check_self_contained(html)
    assert len(_Page(html).references) >= 3  # confusion matrix, curves, augmentation


def test_the_report_of_a_real_run_tells_its_summary(finished_run: Run) -> None:
    """The headline is the accuracy with its interval and number of images."""
    text = _Page(Path(str(finished_run.summary["report"])).read_text(encoding="utf-8")).text
    accuracy = finished_run.summary["metrics"]["test/accuracy"]
    assert f"{100 * accuracy['value']:.1f} % of {accuracy['n']} test images recognised" in text
    assert f"{100 * accuracy['low']:.1f} % to {100 * accuracy['high']:.1f} %" in text
    assert finished_run.summary["data_fingerprint"][:12] in text


@pytest.mark.parametrize("channels", [1, 3])
def test_every_figure_is_on_the_page(tmp_path: Path, channels: int) -> None:
    """Metrics, classes, errors and temperature stand there, for grey and colour images."""
    report = report_of(tmp_path, CLASSES)
    html = _html(tmp_path, report, channels=channels)
    _check_self_contained(html)
    page = _Page(html)
    for estimate in report.metrics.values():
        for figure in (estimate.value, estimate.low, estimate.high):
            assert f"{figure:.3f}" in page.text
    for figures in report.by_class:
        assert f"{100 * figures.recall.value:.1f} %" in page.text
        assert f"{figures.f1:.3f}" in page.text
    assert f"temperature of {report.temperature:.2f}" in page.text
    assert f"{report.errors} errors" in page.text
    assert len(page.references) == len(report.most_confident_errors) > 0
    for error in report.most_confident_errors:
        assert error.path in page.text


@pytest.mark.parametrize(
    "nasty", ["<b>", '"><script>alert(1)</script>', "a & b", "' onmouseover='x", "{{ 7 * 7 }}"]
)
def test_names_are_text_and_never_markup(tmp_path: Path, nasty: str) -> None:
    """Classes, paths, notes, facts, settings and headings appear as they are written."""
    report = report_of(tmp_path, (nasty, "down"), accuracy=0.3)
    picture = tmp_path / "figure.png"
    picture.write_bytes(PNG_START)
    page = ReportPage(title=nasty, facts={nasty: nasty}, notes=(nasty,), settings={nasty: nasty})
    html = _html(tmp_path, report, page=page, figures={nasty: picture})
    _check_self_contained(html)
    parsed, harmless = _Page(html), _Page(_html_of_plain_names(tmp_path))
    assert parsed.tags == harmless.tags
    assert parsed.text.count(nasty) == harmless.text.count("plain")
    assert parsed.text.count(nasty) > 10


def _html_of_plain_names(folder: Path) -> str:
    report = report_of(folder, ("plain", "down"), accuracy=0.3)
    page = ReportPage(
        title="plain", facts={"plain": "plain"}, notes=("plain",), settings={"plain": "plain"}
    )
    return _html(folder, report, page=page, figures={"plain": folder / "figure.png"})


def test_a_perfect_model_has_no_gallery(tmp_path: Path) -> None:
    """Without errors the page says so and shows neither confusions nor a gallery."""
    text = _Page(_html(tmp_path, report_of(tmp_path, CLASSES, accuracy=1.0))).text
    assert "100.0 % of 18 test images recognised" in text
    assert "0 errors" in text
    assert "Most confident errors" not in text
    assert "Most confused" not in text


def test_the_most_confused_classes_come_first(tmp_path: Path) -> None:
    """Pairs of classes are listed by the number of images that were confused, at most ten."""
    classes = tuple(f"class {k:02d}" for k in range(15))
    report = report_of(tmp_path, classes, accuracy=0.4)
    table = _html(tmp_path, report).partition("Most confused")[2].partition("</table>")[0]
    listed: list[tuple[Any, ...]] = re.findall(
        r"<td>(class \d\d)</td><td>(class \d\d)</td>\s*<td class=\"n\">(\d+)</td>", table
    )
    counts = {
        (report.classes[row], report.classes[column]): count
        for row, line in enumerate(report.confusion)
        for column, count in enumerate(line)
        if row != column and count
    }
    assert len(listed) == 10 < len(counts)
    assert [counts[true, said] for true, said, _ in listed] == sorted(
        counts.values(), reverse=True
    )[:10]
    assert all(counts[true, said] == int(count) for true, said, count in listed)
