"""The report on sets of labels holds what scikit-learn computes from its own predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.evaluation.comparison import ComparisonSubject
from patchline.pipeline.evaluation.comparison_page import write_comparison
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.evaluation.galleries import EXPLANATIONS, choose_labels
from patchline.pipeline.evaluation.headline import headline_of
from patchline.pipeline.evaluation.html_report import ReportContents, ReportPage, write_report
from patchline.pipeline.evaluation.label_set_report import (
    LabelSetComparison,
    MultiLabelReport,
    compare_label_sets,
    evaluate_label_sets,
)
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import ThresholdedScores
from patchline.pipeline.evaluation.prediction_job import Explanations
from patchline.pipeline.evaluation.predictions import Predictions
from patchline.pipeline.evaluation.promotion_decision import PromotionDecision
from patchline.pipeline.evaluation.report import ReportSubject
from patchline.pipeline.evaluation.tasks import SEVERAL
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.promotion_gates import champion_gates
from tests.pipeline.evaluation.label_set_data import LABELS, logits_table
from tests.pipeline.evaluation.pages import check_self_contained


def _report(logits: pd.DataFrame) -> tuple[MultiLabelReport, pd.DataFrame]:
    table, fit = SEVERAL.calibrated(logits, LABELS)
    report = evaluate_label_sets(
        Predictions.of_label_sets(table[table["split"] == "test"], LABELS),
        ReportSubject(name="shapes", classes=LABELS, split="test", data_fingerprint="0" * 64),
        fit,
    )
    return report, table


@pytest.fixture(scope="module")
def usual() -> tuple[MultiLabelReport, pd.DataFrame]:
    """Return the report on the usual logits, and its table; tests must not change them."""
    return _report(logits_table())


def test_metrics_can_be_computed_again_from_the_table_of_predictions(
    usual: tuple[MultiLabelReport, pd.DataFrame], tmp_path: Path
) -> None:
    """By anybody, with scikit-learn. The page beside it names every label."""
    report, table = usual
    html = _write(report, table, tmp_path)
    stored = pd.read_parquet(html.with_name("predictions.parquet")).query("split == 'test'")
    truth, said = (
        label_sets.matrix(list(stored[column]), LABELS) for column in ("label", "predicted")
    )
    scores = np.stack(list(stored["probabilities"])).astype(np.float64)[:, :3]
    for name, expected in (
        ("mAP", average_precision_score(truth[:, :3], scores)),
        ("macro_f1", f1_score(truth[:, :3], said[:, :3], average="macro")),
        ("exact_match", accuracy_score(truth, said)),
    ):
        assert report.metrics[f"test/{name}"].value == pytest.approx(expected, abs=1e-9)
    assert report.false_positives == int(((said == 1) & (truth == 0)).sum())
    assert report.false_negatives == int(((said == 0) & (truth == 1)).sum())
    text = check_self_contained(html.read_text("utf-8")).text
    words = ("mean average precision", "False positives", "Random ranking", "no image has it")
    for part in (*words, *LABELS):
        assert part in text


def test_what_is_not_known_is_said(usual: tuple[MultiLabelReport, pd.DataFrame]) -> None:
    """A label without test images, and one of few validation images."""
    report, _ = usual
    assert report.unknown_labels == ("unseen",)
    assert (report.by_label[3].average_precision, report.by_label[3].threshold) == (None, 0.5)
    text = "\n".join(report.notes)
    assert "no test image has the label unseen: unknown, and excluded from means" in text
    for words in ("unseen is not calibrated", "0.5 for unseen"):
        assert f"{words}: fewer than 10 of 150 validation images have it" in text


def test_images_that_all_have_the_same_labels_get_a_report(tmp_path: Path) -> None:
    """Their mAP is unknown, and everything that shows a headline says so."""
    logits = logits_table()
    logits.loc[150:, "label"] = label_sets.encode_labels(("red", "square"))
    report, table = _report(logits)
    assert "test/mAP" not in report.metrics
    assert report.headline == headline_of(report.metrics)
    assert report.headline.short == report.headline.sentence == "mAP unknown"
    assert (report.chance, report.warning) == (None, "")
    assert any(each.startswith("mAP is unknown: no label is on some") for each in report.notes)
    html = _write(report, table, tmp_path)
    page = " ".join(html.read_text("utf-8").split())
    assert "<strong>unknown</strong> <span>mean average precision (mAP) on 150 test images" in page
    assert "Random ranking" not in page
    evaluated = Evaluated(report=report, folder=tmp_path, html=html)  # as a resumed run reads it
    assert Evaluated.model_validate_json(evaluated.model_dump_json()) == evaluated


def test_copies_of_images_make_nothing_more_certain() -> None:
    """Five frames of each scene: intervals are about as wide as those of a fifth of the images."""
    once = logits_table(160)
    five = pd.concat([once.assign(group=once["path"])] * 5, ignore_index=True)
    grouped, alone = (_report(each)[0] for each in (five, five.assign(group="")))
    assert (grouped.groups, alone.groups) == (80, None)
    assert grouped.groups_note.startswith("these 400 images form 80 groups: the intervals take")
    keys = ("average_precision", "roc_auc", "precision", "recall", "f1")
    found, single = (
        list(report.metrics.items())
        + [(key, getattr(row, key)) for row in report.by_label[:3] for key in keys]
        for report in (grouped, alone)
    )
    for (key, one), (_, other) in zip(found, single, strict=True):
        assert one.value == other.value, key
        ratio = (one.high - one.low) / (other.high - other.low)
        assert (1.0 if key == "test/ece" else 0.7 * 5**0.5) < ratio < 5.5, key


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
    place = next(k for k in range(150, 300) if "red" in str(logits.loc[k, "label"]))
    rest = set(label_sets.decode_labels(str(logits.loc[place, "label"]))) - {"red"}
    logits.loc[place, "label"] = label_sets.encode_labels(rest)
    report, _ = _report(logits)
    first = report.missing_labels[0]
    assert (first.path, first.label, first.position) == (f"images/{place}.png", "red", place)
    assert "red" in set(first.predicted) - set(first.labels)
    images = report.confident_false_positives
    assert len({image.path for image in images}) == len(images)
    probabilities = [image.probability for image in images]
    assert probabilities == sorted(probabilities, reverse=True)


def test_without_validation_images_nothing_is_fitted() -> None:
    """And that is said."""
    logits = logits_table()
    report, _ = _report(logits[logits["split"] == "test"])
    assert {row.threshold for row in report.by_label} == {0.5}
    assert any("there is no validation image" in note for note in report.notes)


def _write(report: MultiLabelReport, table: pd.DataFrame, folder: Path, **more: Any) -> Path:
    page = ReportPage(title="shapes: test report", facts={}, notes=(), settings={})
    pixels = np.random.default_rng(0).integers(0, 255, (len(table), 8, 8, 3), np.uint8)
    return write_report(
        SEVERAL.parts, report, ReportContents(page, table, lambda row: pixels[row], **more), folder
    )


def test_slices_have_the_f1_of_their_images() -> None:
    """And the share of exact matches; a slice on which the model guesses is marked."""
    logits = logits_table(400, skill=6.0)
    is_night = np.arange(400) % 4 == 0
    shuffled = np.random.default_rng(1).normal(0, 4, (400, 4)).astype(np.float32)
    logits["group"] = np.where(is_night, "night", "day")
    logits["logits"] = logits["logits"].where(~is_night, pd.Series(list(shuffled)))
    report, table = _report(logits)
    slices = {each.value: each for each in report.slices}
    for name, part in slices.items():
        rows = table[(table["split"] == "test") & (table["group"] == name)]
        truth, said = (label_sets.matrix(list(rows[c]), LABELS) for c in ("label", "predicted"))
        expected = f1_score(truth, said, average="samples", zero_division=1)
        assert part.samples_f1.value == pytest.approx(expected, abs=1e-9)
        assert part.exact_match.value == pytest.approx(accuracy_score(truth, said), abs=1e-9)
        assert part.samples_f1.low <= part.samples_f1.value <= part.samples_f1.high
    assert slices["night"].differs
    assert slices["night"].samples_f1.value < slices["day"].samples_f1.value
    assert report.undivided == {"mode": "RGB", "size": "8 px"}


def test_the_wrong_label_of_an_image_is_explained_on_the_page() -> None:
    """That of the most probable wrong label; its map lies beside it, and pages are linked."""
    report, table = _report(logits_table(skill=1.0))
    first = report.confident_false_positives[0]
    chosen = {each.page: each for each in choose_labels(table, LABELS)}
    assert chosen.keys() == {"surest_right", "worst_wrong"}
    assert (chosen["worst_wrong"].path, chosen["worst_wrong"].label) == (first.path, first.label)
    folder = Path("report")
    np.savez(Path("maps.npz"), positions=[first.position], maps=np.ones((1, 2, 2)))
    (folder / EXPLANATIONS).mkdir(parents=True)
    (folder / EXPLANATIONS / "worst_wrong.html").write_text("page", "utf-8")
    maps = Explanations(maps_file=Path("maps.npz"), maps_kind="gradient")
    text = _write(report, table, folder, explanations=maps).read_text("utf-8")
    assert text.count(f'alt="Parts of it that support {first.label}"') == 1
    assert 'href="explanations/worst_wrong.html"' in text
    assert {"false_positives.png", "false_negatives.png", "missing_labels.png"} <= {
        file.name for file in folder.iterdir()
    }


CLASSES = ("circle", "red", "unseen")


def _comparison(
    images: int,
    gain: float,
    *,
    thresholds: tuple[float, float] = (0.5, 0.5),
    group_size: int = 1,
) -> LabelSetComparison:
    generator = np.random.default_rng(0)
    labels = (generator.random((images, 3)) < (0.3, 0.5, 0)).astype(np.uint8)
    common = generator.normal(size=labels.shape)
    answers = []
    for skill, threshold in zip((1.5, 1.5 + gain), thresholds, strict=True):
        logits = skill * (labels - 0.5) + common + generator.normal(size=labels.shape) / 2
        scores = 1 / (1 + np.exp(-logits))
        answers.append(ThresholdedScores(scores, (scores >= threshold).astype(np.uint8)))
    return compare_label_sets(
        ComparisonSubject(
            champion="3",
            challenger="4",
            classes=CLASSES,
            left_out={},
            groups_N=np.arange(images) // group_size,
        ),
        [],
        labels,
        *answers,
    )


def test_a_better_model_passes_with_a_sentence() -> None:
    """MAP of both, the difference with its interval, the p-value and its limit, and F1."""
    gate, worse = champion_gates(PromotionConfig(), _comparison(400, 1.5))
    assert gate.passed
    assert worse.passed
    for words in ("on 400 images", "mAP is 9", "95% interval +", "p at most 0.05 (F1 +"):
        assert words in gate.sentence
    assert "'unseen' (0)" in worse.sentence  # too few images to check is said


def test_a_model_that_is_not_better_does_not_pass() -> None:
    """Nor does a label that loses."""
    gate, worse = champion_gates(PromotionConfig(), _comparison(400, -1.2))
    assert (gate.passed, worse.passed) == (False, False)
    assert "has the largest loss: average precision" in worse.sentence


def test_the_map_decides() -> None:
    """A model that ranks better passes, although it gives far too few labels."""
    comparison = _comparison(400, 1.5, thresholds=(0.5, 0.99))
    gate = champion_gates(PromotionConfig(), comparison)[0]
    assert gate.passed
    gains = {name: pair.difference.value for name, pair in comparison.paired.items()}
    assert gate.value == gains["mAP"]
    assert gains["macro_f1"] < 0


def test_the_page_shows_both_models_and_each_label(tmp_path: Path) -> None:
    """And it can be read back."""
    comparison = _comparison(30, 1.0)
    gates = champion_gates(PromotionConfig(min_images=20), comparison)
    decision = PromotionDecision.model_validate(
        {"name": "shapes", "version": "4", "champion": "3", "gates": gates}
        | {"promoted": True, "reason": "better", "decided_at": "2026-01-01T00:00:00+00:00"}
    )
    assert decision.unchecked == ("no_class_worse",)
    text = write_comparison(comparison, decision, tmp_path, None).read_text("utf-8")
    words = ("label without", "no label has 20", ">not checked</")
    for part in ("Challenger 4 against champion 3", "circle", *words):
        assert part in text
    stored = (tmp_path / "comparison.json").read_text("utf-8")
    assert LabelSetComparison.model_validate_json(stored) == comparison


def test_whole_groups_are_drawn_and_counted() -> None:
    """The gate says so; least numbers of images are numbers of groups."""
    comparison = _comparison(400, 1.5, group_size=4)
    gate = champion_gates(PromotionConfig(), comparison)[0]
    assert gate.passed
    assert gate.sentence.startswith("on 400 images in 100 groups")
    assert "testing whole groups; required: a gain" in gate.sentence
    few = champion_gates(PromotionConfig(), _comparison(400, 1.5, group_size=10))
    assert [(each.passed, each.value) for each in few] == [(False, None), (None, None)]
    assert "only 40 groups of images (400 images) were" in few[0].sentence
