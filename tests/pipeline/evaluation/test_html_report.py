"""The HTML report needs no other file, runs no code, and says what the figures say."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from patchline.pipeline.evaluation.html_report import ReportPage, WhereItLooked, write_html
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.metrics.intervals import MetricEstimate
from patchline.pipeline.metrics.names import METRICS
from patchline.pipeline.visual_guide.covering_result import CoveredByMap, CoveringTest
from tests.conftest import Run
from tests.pipeline.evaluation.conftest import random_images, report_of

CLASSES = ("across", "down", "rising")
STARTS = {
    "data:image/png;base64": b"\x89PNG\r\n\x1a\n",
    "data:image/jpeg;base64": b"\xff\xd8\xff",
    "data:image/svg+xml;base64": b"<?xml",
}
REFERENCES = {"src", "href", "action", "data", "poster", "srcset", "background", "formaction"}


class _Page(HTMLParser):
    """What a browser would make of a page: tags, what they refer to, and the text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.handlers: list[str] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.feed(html)
        self.text = re.sub(r"\s+", " ", " ".join(self.texts))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in REFERENCES]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _html(
    folder: Path,
    report: EvaluationReport,
    *,
    channels: int = 3,
    page: ReportPage | None = None,
    **more: Any,
) -> str:
    page = page or ReportPage(title="photos: test report", facts={}, notes=(), settings={})
    images = random_images(2 * report.images, channels)
    write_html(report, page, images.__getitem__, folder / "report.html", **more)
    return (folder / "report.html").read_text(encoding="utf-8")


def _check_self_contained(html: str, folder: Path | None = None) -> None:
    page = _Page(html)
    assert html.startswith("<!doctype html>")
    forbidden = {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert forbidden.isdisjoint(page.tags)
    assert page.handlers == []
    assert re.findall(r"https?:|//[a-z]|javascript:|@import", _without_pictures(html)) == []
    assert re.findall(r"url\((?!['\"]?data:)", html) == []
    for reference in page.references:
        if reference.startswith("#"):
            assert reference[1:] in page.ids
            continue
        if folder is not None and reference.startswith("explanations/"):
            assert (folder / reference).is_file()
            continue
        kind, _, data = reference.partition(",")
        start = STARTS[kind]
        assert base64.b64decode(data, validate=True).startswith(start)
    assert len(page.ids) == len(set(page.ids))


def _without_pictures(html: str) -> str:
    return re.sub(r"data:image/[\w+]+;base64,[A-Za-z0-9+/=]*", "", html)


def test_the_report_of_a_real_run_needs_nothing_else(finished_run: Run) -> None:
    """The page of a real run holds no script, and links nothing but the guides beside it."""
    file = Path(str(finished_run.summary["report"]))
    html = file.read_text(encoding="utf-8")
    _check_self_contained(html, file.parent)
    assert 'href="explanations/surest_right.html"' in html
    pictures = [name for name in _Page(html).references if name.startswith("data:")]
    assert len(pictures) >= 2  # the galleries and the augmentation
    assert "validation" in html.partition("Training")[2]  # curves


def test_the_report_of_a_real_run_tells_its_summary(finished_run: Run) -> None:
    """The headline is the accuracy with its interval and number of images."""
    text = _Page(Path(str(finished_run.summary["report"])).read_text(encoding="utf-8")).text
    accuracy = finished_run.summary["metrics"]["test/accuracy"]
    assert (
        f"{100 * accuracy['value']:.1f}% of {accuracy['n']} test images classified correctly"
        in text
    )
    assert f"{100 * accuracy['low']:.1f}% to {100 * accuracy['high']:.1f}%" in text
    assert finished_run.summary["data_fingerprint"][:12] in text


@pytest.mark.parametrize("channels", [1, 3])
def test_every_figure_is_on_the_page(tmp_path: Path, channels: int) -> None:
    """Metrics, classes, galleries and temperature stand there, for grey and colour images."""
    report = report_of(tmp_path, CLASSES)
    html = _html(tmp_path, report, channels=channels)
    _check_self_contained(html)
    page = _Page(html)
    for key, estimate in report.metrics.items():
        assert METRICS[key.partition("/")[2]].title in page.text
        for figure in (estimate.value, estimate.low, estimate.high):
            assert f"{figure:.3f}" in page.text
    for figures in report.by_class:
        assert f"{100 * figures.recall.value:.1f}%" in page.text
        assert f"{figures.f1.value:.3f}" in page.text
    assert report.calibration.sentence() in page.text
    assert report.calibration.before() in page.text
    assert f"{report.errors} errors" in page.text
    shown = (*report.most_confident_errors, *report.least_certain, *report.likely_label_errors)
    pictures = [
        name for name in page.references if name.startswith(("data:image/png", "data:image/jpeg"))
    ]
    assert len(pictures) == len(shown) > 20
    for image in shown:
        assert image.path in page.text
    for part in report.slices:
        assert part.value in page.text


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> _Page:
    """Return a page whose names are words."""
    return _Page(_html_of_names(tmp_path_factory.mktemp("harmless"), "plain"))


NASTY = ["<b>", '"><script>alert(1)</script>', "a & b", "' onmouseover='x", "{{ 7 * 7 }}"]


@pytest.mark.parametrize("nasty", NASTY)
def test_names_are_text_and_never_markup(tmp_path: Path, harmless: _Page, nasty: str) -> None:
    """Classes, paths, groups, notes, facts and settings appear as they are written."""
    html = _html_of_names(tmp_path, nasty)
    _check_self_contained(html)
    parsed = _Page(html)
    assert parsed.tags == harmless.tags
    assert parsed.text.count(nasty) == harmless.text.count("plain")
    assert parsed.text.count(nasty) > 20


def _html_of_names(folder: Path, name: str) -> str:
    folder_name = name.replace("{", "{{").replace("}", "}}")
    report = report_of(folder, (name, "down"), accuracy=0.3, paths=folder_name + "/{row}.png")
    slices = tuple(part.model_copy(update={"value": name}) for part in report.slices)
    same = {"group": name}
    report = report.model_copy(update={"slices": slices, "undivided": same, "name": name})
    page = ReportPage(
        title=name, lead=name, facts={name: name}, notes=(name,), settings={name: name}
    )
    return _html(folder, report, page=page)


def test_a_perfect_model_has_no_gallery_of_errors(tmp_path: Path) -> None:
    """Without errors the page says so and shows neither confusions nor errors."""
    text = _Page(_html(tmp_path, report_of(tmp_path, CLASSES, accuracy=1.0))).text
    assert "100.0% of 18 test images classified correctly" in text
    assert "0 errors" in text
    assert "every image was classified correctly" in text
    assert "Most confident errors" not in text
    assert "Most confused" not in text
    assert "Least certain" in text


def test_the_verdict_comes_before_everything_else(tmp_path: Path) -> None:
    """Accuracy first, then what to take care of, then figures, confusions, classes and the rest."""
    page = ReportPage(title="photos", facts={}, notes=("two files were left out",), settings={})
    html = _html(tmp_path, report_of(tmp_path, CLASSES, accuracy=0.5), page=page)
    order = [
        "images classified correctly", "two files were left out", "Metrics", "Confusions",
        "Metrics by class", "Most confident errors", "Likely label errors", "Least certain",
        "Calibration", "Slices", "All metrics", "Model and data",
    ]  # fmt: skip
    places = [html.index(f"{heading}<") for heading in order[:2]]
    places += [html.index(f">{heading}</h2>") for heading in order[2:]]
    assert places == sorted(places)


def test_the_worst_class_comes_first(tmp_path: Path) -> None:
    """Classes are listed by F1, the worst first, and none is left out."""
    classes = tuple(f"kind {k:02d}" for k in range(15))
    report = report_of(tmp_path, classes, accuracy=0.5)
    part = _html(tmp_path, report).partition("Metrics by class")[2].partition("Most confident")[0]
    listed = re.findall(r'<th scope="row" class="name">(kind \d\d)</th>', part)
    f1 = {figures.name: figures.f1.value for figures in report.by_class}
    assert sorted(listed) == sorted(classes)
    assert [f1[name] for name in listed] == sorted(f1.values())
    assert "The other 3 classes" in part


def test_what_the_figures_warn_of_is_said(tmp_path: Path) -> None:
    """A model no better than one answer, few images or groups, and absent classes are named."""
    report = report_of(tmp_path, ("a", "b", "c"), accuracy=0.3, per_class=2)
    absent = report.by_class[1].model_copy(update={"images": 0})
    classes = (report.by_class[0], absent, report.by_class[2])
    report = report.model_copy(update={"by_class": classes, "groups": 2})
    text = _Page(_html(tmp_path, report)).text
    assert "Warning: the model is not clearly better" in text
    assert "only 6 test images" in text
    assert "no test image of b" in text
    assert (
        "these 6 images form 2 groups: the intervals take groups, not images, as independent"
        in text
    )


def test_a_large_matrix_shows_a_part(tmp_path: Path) -> None:
    """With forty classes twenty of the most confused pairs are shown, and the page says so."""
    classes = tuple(f"kind {k:02d}" for k in range(40))
    html = _html(tmp_path, report_of(tmp_path, classes, accuracy=0.4, per_class=2))
    assert "Only 20 of 40 classes are shown" in html
    matrix = html.partition('<table class="matrix')[2].partition("</table>")[0]
    assert matrix.count("<tr>") == 21
    assert "all others" in matrix


def test_small_and_unusual_slices_are_marked(tmp_path: Path) -> None:
    """Parts with few images, and parts that differ, carry a mark."""
    report = report_of(tmp_path, CLASSES, accuracy=0.5)
    low = report.slices[0].model_copy(
        update={
            "value": "night",
            "differs": True,
            "small": False,
            "accuracy": MetricEstimate(value=0.1, low=0.05, high=0.2, n=90),
        }
    )
    few = report.slices[0].model_copy(update={"value": "dusk", "differs": False, "small": True})
    html = _html(tmp_path, report.model_copy(update={"slices": (low, few)}))
    rows = html.partition("By group")[2].partition("</table>")[0].split("</tr>")
    [night] = [_Page(row).text for row in rows if "night" in row]
    [dusk] = [_Page(row).text for row in rows if "dusk" in row]
    assert "lower" in night
    assert "few images" not in night
    assert "few images" in dusk
    assert "one slice in twenty is marked by chance" in html


def test_curves_and_preview_are_on_the_page_of_a_run(tmp_path: Path) -> None:
    """With a history there are its curves, with a preview its picture; without, neither."""
    keys = ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy")
    history = [{"epoch": epoch, **dict.fromkeys(keys, 0.5)} for epoch in (1, 2)]
    preview = tmp_path / "preview.png"
    Image.fromarray(random_images(1, 3)[0]).save(preview)
    report = report_of(tmp_path, CLASSES)
    without = _html(tmp_path, report)
    html = _html(tmp_path, report, history=history, preview=preview)
    _check_self_contained(html)
    assert html.count("svg+xml") == without.count("svg+xml") + 1
    assert html.count("<img") == without.count("<img") + 2


def test_every_table_and_picture_has_words_for_those_who_do_not_see_it(tmp_path: Path) -> None:
    """Images have an alternative text, drawings a label, columns a heading with its direction."""
    html = _html(tmp_path, report_of(tmp_path, CLASSES))
    for image in re.findall(r"<img[^>]*>", html):
        assert re.search(r'alt="[^"]+"', image)
    for drawing in re.findall(r"<svg[^>]*>", html):
        assert re.search(r'role="img" aria-label="[^"]+"', drawing)
    headings = re.findall(r"<th[ >][^>]*", html)
    assert all('scope="' in heading for heading in headings)
    assert '<html lang="en">' in html
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in html


def test_maps_stand_beside_the_errors_and_the_test_of_them_below(tmp_path: Path) -> None:
    """Each error has a second picture; a map that does not beat chance is called that."""
    covering = CoveringTest(
        images=12,
        cells=49,
        covered_cells=10,
        before=0.9,
        random=0.7,
        maps=(
            CoveredByMap(kind="gradient", probability=0.4, advantage=_estimate(0.3, 0.2, 0.4)),
            CoveredByMap(kind="attention", probability=0.7, advantage=_estimate(0.0, -0.1, 0.1)),
        ),
    )
    report = report_of(tmp_path, CLASSES, accuracy=0.4)
    plain = _html(tmp_path, report)
    errors = [image.position for image in report.most_confident_errors]
    looked = WhereItLooked({position: np.eye(4) for position in errors})
    html = _html(tmp_path, report.model_copy(update={"covering_test": covering}), looked=looked)
    _check_self_contained(html)
    assert html.count("<img") == plain.count("<img") + len(errors)
    assert "10 of 49 parts were covered" in _Page(html).text
    rows = [_Page(row).text for row in html.partition('id="covering"')[2].split("</tr>")]
    assert "30.0 points 20.0 points to 40.0 points meaningful" in rows[3]
    assert "not clearly better than chance" in rows[4]


def _estimate(value: float, low: float, high: float) -> MetricEstimate:
    return MetricEstimate(value=value, low=low, high=high, n=12)
