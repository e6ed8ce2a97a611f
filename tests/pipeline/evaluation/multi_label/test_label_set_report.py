"""The report on sets of labels holds what scikit-learn computes from its own predictions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from patchline.pipeline.errors import DataError
from patchline.pipeline.evaluation.chosen_images import EXPLANATIONS, choose_images
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.headline import headline_of
from patchline.pipeline.evaluation.html_report import ReportPage
from patchline.pipeline.evaluation.multi_label.judging import calibrated_label_sets
from patchline.pipeline.evaluation.multi_label.label_set_predictions import LabelSetPredictions
from patchline.pipeline.evaluation.multi_label.label_set_report import (
    MultiLabelReport,
    evaluate_label_sets,
)
from patchline.pipeline.evaluation.prediction_job import Explanations
from patchline.pipeline.evaluation.written_report import ReportContents, write_report
from patchline.pipeline.labels import label_sets
from tests.pipeline.evaluation.multi_label.label_set_data import LABELS, logits_table


def _report(logits: pd.DataFrame) -> tuple[MultiLabelReport, pd.DataFrame]:
    table, calibration, thresholds = calibrated_label_sets(logits, LABELS)
    report = evaluate_label_sets(
        LabelSetPredictions.of(table[table["split"] == "test"], LABELS),
        name="shapes",
        classes=LABELS,
        split="test",
        data_fingerprint="0" * 64,
        calibration=calibration,
        thresholds=thresholds,
    )
    return report, table


@pytest.fixture(scope="module")
def usual() -> tuple[MultiLabelReport, pd.DataFrame]:
    """Return the report on the usual logits, and its table; tests must not change them."""
    return _report(logits_table())


def test_metrics_can_be_computed_again_from_the_table_of_predictions(
    usual: tuple[MultiLabelReport, pd.DataFrame], tmp_path: Path
) -> None:
    """By anybody, with scikit-learn: the labels and the predicted labels are in the file."""
    report, table = usual
    html = _write(report, table, tmp_path)
    stored = pd.read_parquet(html.with_name("predictions.parquet"))
    stored = stored[stored["split"] == "test"]
    truth, said = (
        label_sets.matrix(list(stored[column]), LABELS) for column in ("label", "predicted")
    )
    scores = np.stack(list(stored["probabilities"])).astype(np.float64)[:, :3]
    found = {key.removeprefix("test/"): each.value for key, each in report.metrics.items()}
    assert found["mAP"] == pytest.approx(average_precision_score(truth[:, :3], scores), abs=1e-9)
    macro = f1_score(truth[:, :3], said[:, :3], average="macro")
    assert found["macro_f1"] == pytest.approx(macro, abs=1e-9)
    assert found["exact_match"] == pytest.approx(accuracy_score(truth, said), abs=1e-9)
    assert report.headline.name == "mAP"
    assert report.false_positives == int(((said == 1) & (truth == 0)).sum())
    assert report.false_negatives == int(((said == 0) & (truth == 1)).sum())


def test_what_is_not_known_is_said(usual: tuple[MultiLabelReport, pd.DataFrame]) -> None:
    """A label without test images, and one of few validation images."""
    report, _ = usual
    assert report.unknown_labels == ("unseen",)
    assert report.by_label[3].average_precision is None
    assert report.by_label[3].threshold == 0.5
    text = "\n".join(report.notes)
    assert "no test image has the label unseen: unknown, and excluded from means" in text
    assert "unseen is not calibrated: fewer than 10 of 150 validation images have it" in text
    assert "0.5 for unseen: fewer than 10 of 150 validation images have it" in text


@pytest.mark.parametrize("labels", [("red", "square"), ()], ids=["two", "none"])
def test_images_that_all_have_the_same_labels_get_a_report(
    tmp_path: Path, labels: tuple[str, ...]
) -> None:
    """Their mAP is unknown, and everything that shows a headline says so."""
    logits = logits_table()
    logits.loc[150:, "label"] = label_sets.encoded(labels)
    report, table = _report(logits)
    assert "test/mAP" not in report.metrics
    assert report.headline.estimate is None
    assert report.headline.short == report.headline.sentence == "mAP unknown"
    assert headline_of(report.metrics) == report.headline
    assert (report.chance, report.warning) == (None, "")
    note = "mAP is unknown: no label is on some and not on others of these 150 images"
    assert note in report.notes
    page = " ".join(_write(report, table, tmp_path).read_text("utf-8").split())
    assert "<strong>unknown</strong> <span>mean average precision (mAP) on 150 test images" in page
    assert "Random ranking" not in page
    assert MultiLabelReport.model_validate_json(report.model_dump_json()) == report


def test_images_in_groups_make_the_intervals_wider(
    usual: tuple[MultiLabelReport, pd.DataFrame], tmp_path: Path
) -> None:
    """The report says so where two images share a group; an image without one is its own."""
    logits = logits_table()
    assert usual[0].groups is None
    logits.loc[200:249, "group"] = "anna"
    report, table = _report(logits)
    assert report.groups == 101
    page = _write(report, table, tmp_path).read_text("utf-8")
    assert f"<li>{report.groups_note}</li>" in page
    assert report.groups_note.startswith("these 150 images form 101 groups: the intervals take")


def test_copies_of_images_make_nothing_more_certain() -> None:
    """Five frames of each scene: intervals are about as wide as those of a fifth of the images."""
    once = logits_table(160)
    five = pd.concat([once.assign(group=once["path"])] * 5, ignore_index=True)
    grouped, alone = (_report(each)[0] for each in (five, five.assign(group="")))
    for key, one in alone.metrics.items():
        found = grouped.metrics[key]
        assert found.value == one.value, key
        ratio = (found.high - found.low) / (one.high - one.low)
        least = 1.0 if key == "test/ece" else 0.7 * 5**0.5
        assert least < ratio < 5.5, key
    for row, one_row in zip(grouped.by_label[:3], alone.by_label[:3], strict=True):
        for key in ("average_precision", "roc_auc", "precision", "recall", "f1"):
            width, one_width = (
                getattr(each, key).high - getattr(each, key).low for each in (row, one_row)
            )
            assert 0.7 * 5**0.5 < width / one_width < 5.5, key


def test_a_model_that_ranks_by_chance_gets_a_warning(
    usual: tuple[MultiLabelReport, pd.DataFrame],
) -> None:
    """Random ranking has the mean share of the images with a label as its mAP."""
    assert not usual[0].warning
    warning = _report(logits_table(skill=0.0))[0].warning
    assert "not clearly better than random ranking, whose mAP is 3" in warning


def test_galleries_hold_the_most_striking_errors_first() -> None:
    """Each image once; a label that was taken from the data is suspected to be missing."""
    logits = logits_table(skill=8.0)
    place = next(
        number
        for number in range(150, 300)
        if "red" in label_sets.decoded(str(logits.loc[number, "label"]))
    )
    rest = set(label_sets.decoded(str(logits.loc[place, "label"]))) - {"red"}
    logits.loc[place, "label"] = label_sets.encoded(rest)
    report, _ = _report(logits)
    first = report.missing_labels[0]
    assert (first.path, first.label) == (f"images/{place}.png", "red")
    assert first.position == place
    assert "red" in first.predicted
    assert "red" not in first.labels
    for images in (report.confident_false_positives, report.confident_false_negatives):
        assert len({image.path for image in images}) == len(images)
    probabilities = [image.probability for image in report.confident_false_positives]
    assert probabilities == sorted(probabilities, reverse=True)


def test_the_page_names_every_label_and_needs_no_other_file(
    usual: tuple[MultiLabelReport, pd.DataFrame], tmp_path: Path
) -> None:
    """There are no scripts."""
    report, table = usual
    text = _write(report, table, tmp_path).read_text("utf-8")
    for part in ("mean average precision", "False positives", "unknown: no image has it", *LABELS):
        assert part in text
    assert "<script" not in text
    assert "Random ranking" in text


def test_a_report_is_read_back_as_what_it_is(tmp_path: Path) -> None:
    """A resumed run reads its report from a file."""
    report, _ = _report(logits_table(60))
    evaluated = Evaluated(report=report, folder=tmp_path, html=tmp_path / "report.html")
    assert Evaluated.model_validate_json(evaluated.model_dump_json()) == evaluated


def test_without_validation_images_nothing_is_fitted() -> None:
    """And that is said."""
    logits = logits_table()
    report, _ = _report(logits[logits["split"] == "test"])
    assert {row.threshold for row in report.by_label} == {0.5}
    assert any("there is no validation image" in note for note in report.notes)


def test_labels_that_the_model_lacks_are_an_error() -> None:
    """They are named."""
    logits = logits_table(20)
    logits.loc[3, "label"] = '["zebra"]'
    with pytest.raises(DataError, match="no label zebra; its labels are circle, red"):
        _report(logits)


def _write(report: MultiLabelReport, table: pd.DataFrame, folder: Path) -> Path:
    page = ReportPage(title="shapes: test report", facts={}, notes=(), settings={})
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 255, (len(table), 8, 8, 3), np.uint8)
    return write_report(report, ReportContents(page, table, lambda row: pixels[row]), folder)


def test_slices_have_the_f1_of_their_images(tmp_path: Path) -> None:
    """And the share of exact matches; a slice on which the model guesses is marked."""
    logits = logits_table(400, skill=6.0)
    logits["group"] = np.where(np.arange(400) % 4 == 0, "night", "day")
    night = logits["group"] == "night"
    shuffled = np.random.default_rng(1).normal(size=(int(night.sum()), 4)).astype(np.float32)
    logits.loc[night, "logits"] = pd.Series(list(4 * shuffled), index=logits.index[night])
    report, table = _report(logits)
    slices = {each.value: each for each in report.slices}
    test = table[table["split"] == "test"]
    for name, part in slices.items():
        rows = test[test["group"] == name]
        truth, said = (label_sets.matrix(list(rows[c]), LABELS) for c in ("label", "predicted"))
        expected = f1_score(truth, said, average="samples", zero_division=1)
        assert part.samples_f1.value == pytest.approx(expected, abs=1e-9)
        assert part.exact_match.value == pytest.approx(accuracy_score(truth, said), abs=1e-9)
        assert part.samples_f1.low <= part.samples_f1.value <= part.samples_f1.high
    assert slices["night"].differs
    assert slices["night"].samples_f1.value < slices["day"].samples_f1.value
    assert report.undivided == {"mode": "RGB", "size": "8 px"}
    text = _write(report, table, tmp_path).read_text("utf-8")
    assert 'id="slices"' in text
    assert '<span class="badge strong">lower</span>' in text


def test_a_label_that_is_never_predicted_is_named() -> None:
    """Images have it, and no probability reaches its threshold: nobody will ever be given it."""
    logits = logits_table(200)
    changed = np.stack(list(logits["logits"]))
    changed[100:, 0] = -9  # circle, on the test images
    report, _ = _report(logits.assign(logits=list(changed)))
    assert report.never_predicted == ("circle",)
    [note] = [each for each in report.notes if each.startswith("never predicted")]
    assert "never predicted on these 100 images, although some have it: circle" in note


def test_the_wrong_label_of_an_image_is_explained_on_the_page(tmp_path: Path) -> None:
    """Its map lies beside the false positive, and pages are linked."""
    report, table = _report(logits_table(skill=1.0))
    first = report.confident_false_positives[0]
    maps_file, folder = tmp_path / "maps.npz", tmp_path / "report"
    np.savez(maps_file, positions=[first.position], maps=np.ones((1, 2, 2)))
    explained = folder / EXPLANATIONS / "worst_wrong.html"
    explained.parent.mkdir(parents=True)
    explained.write_text("page", "utf-8")
    pixels = np.zeros((len(table), 8, 8, 3), np.uint8)
    page = ReportPage(title="shapes: test report", facts={}, notes=(), settings={})
    contents = ReportContents(
        page,
        table,
        lambda row: pixels[row],
        explanations=Explanations(maps_file=maps_file, maps_kind="gradient"),
    )
    text = write_report(report, contents, folder).read_text("utf-8")
    assert text.count(f'alt="Parts of it that support {first.label}"') == 1
    assert 'href="explanations/worst_wrong.html"' in text
    assert {"false_positives.png", "false_negatives.png", "missing_labels.png"} <= {
        file.name for file in folder.iterdir()
    }


def test_the_explained_images_are_those_of_the_most_probable_labels() -> None:
    """Of all right and of all wrong labels; the page explains that label."""
    _, table = _report(logits_table(skill=1.0))
    test = table[table["split"] == "test"]
    chosen = {each.page: each for each in choose_images(table, LABELS)}
    for page, is_right in (("surest_right", True), ("worst_wrong", False)):
        best = max(
            (row["probabilities"][LABELS.index(label)], row["path"], label)
            for _, row in test.iterrows()
            for label in label_sets.decoded(row["predicted"])
            if (label in label_sets.decoded(row["label"])) is is_right
        )
        assert (chosen[page].path, chosen[page].label) == best[1:]
