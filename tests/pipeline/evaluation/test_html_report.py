"""The HTML report needs no other file, runs no code, and says what the figures say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd

from patchline.pipeline.evaluation.html_report import (
    ReportContents,
    ReportPage,
    WhereItLooked,
    write_html,
)
from patchline.pipeline.evaluation.metrics.names import METRICS
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.evaluation.tasks import SINGLE
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import random_images, report_of
from tests.pipeline.evaluation.pages import NASTY, Page, check_self_contained

CLASSES = ("across", "down", "rising")


def _html(
    report: EvaluationReport,
    *,
    channels: int = 3,
    page: ReportPage | None = None,
    **more: Any,
) -> str:
    page = page or ReportPage(title="photos: test report", facts={}, notes=(), settings={})
    images, file = random_images(2 * report.images, channels), Path("report.html")
    looked = WhereItLooked()
    contents = ReportContents(page, pd.DataFrame(), images.__getitem__, **more)
    write_html(report, SINGLE.parts(report, page, looked), contents, looked, file)
    return file.read_text("utf-8")


def test_the_report_of_a_real_run_needs_nothing_else(finished_run: Run) -> None:
    """It links nothing but the guides beside it; its headline is the accuracy of the summary."""
    file = Path(str(finished_run.summary["report"]))
    html = file.read_text("utf-8")
    page = check_self_contained(html, file.parent)
    assert "explanations/surest_right.html" in page.references
    assert len(page.pictures) >= 2  # the galleries and the augmentation
    assert "validation" in html.partition("Training")[2]  # curves
    assert "parts were covered" in page.text
    accuracy = finished_run.summary["metrics"]["test/accuracy"]
    value, low, high = (100 * accuracy[key] for key in ("value", "low", "high"))
    assert f"{value:.1f}% of {accuracy['n']} test images classified correctly" in page.text
    assert f"{low:.1f}% to {high:.1f}%" in page.text
    assert finished_run.summary["data_fingerprint"][:12] in page.text


def test_every_figure_is_on_the_page() -> None:
    """Metrics, classes, galleries and temperature stand there, the accuracy first."""
    report = report_of(CLASSES, accuracy=0.5)
    page = check_self_contained(_html(report, channels=1))
    shown = (*report.most_confident_errors, *report.least_certain, *report.likely_label_errors)
    assert len(page.pictures) == len(shown) > 20
    words = [f"{report.errors} errors", report.calibration.sentence(), report.calibration.before()]
    for key, estimate in report.metrics.items():
        words.append(METRICS[key.partition("/")[2]].title)
        words += [f"{each:.3f}" for each in (estimate.value, estimate.low, estimate.high)]
    for figures in report.by_class:
        words += [f"{100 * figures.recall.value:.1f}%", f"{figures.f1.value:.3f}"]
    words += [image.path for image in shown] + [part.value for part in report.slices]
    assert [each for each in words if each not in page.text] == []
    assert page.text.index("images classified correctly") < page.text.index(words[3])


def test_names_are_text_and_never_markup() -> None:
    """Classes, paths, groups, notes, facts and settings appear as they are written."""
    pages = []
    for name in (NASTY, "plain"):
        paths = name.replace("{", "{{").replace("}", "}}") + "/{row}.png"
        report = report_of((name, "down"), accuracy=0.3, paths=paths)
        slices = tuple(part.model_copy(update={"value": name}) for part in report.slices)
        changes = {"slices": slices, "undivided": {"group": name}, "name": name}
        said: dict[str, Any] = {"title": name, "lead": name, "notes": (name,)}
        page = ReportPage(**said, facts={name: name}, settings={name: name})
        pages.append(check_self_contained(_html(report.model_copy(update=changes), page=page)))
    nasty, plain = pages
    assert nasty.tags == plain.tags
    assert nasty.text.count(NASTY) == plain.text.count("plain") > 20


def test_what_the_figures_warn_of_is_said() -> None:
    """A model no better than one answer, few images or groups, and absent classes are named."""
    report = report_of(("a", "b", "c"), accuracy=0.3, per_class=2)
    absent = report.by_class[1].model_copy(update={"images": 0})
    classes = (report.by_class[0], absent, report.by_class[2])
    report = report.model_copy(update={"by_class": classes, "groups": 2})
    text = Page(_html(report)).text
    for words in ("model is not clearly better", "only 6 test images", "no test image of b"):
        assert words in text
    assert report.groups_note in text


def test_every_table_and_picture_has_words_for_those_who_do_not_see_it() -> None:
    """Images have an alternative text, drawings a label, columns a heading with its direction."""
    html = _html(report_of(CLASSES))
    for element, words in (
        ("img", 'alt="[^"]+"'),
        ("svg", 'role="img" aria-label="[^"]+"'),
        ("th", "scope="),
    ):
        found = re.findall(rf"<{element}[ >][^>]*", html)
        assert all(re.search(words, each) for each in found)
    assert '<html lang="en">' in html
