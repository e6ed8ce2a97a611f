"""Evaluate the gates for a version: its test metrics, the paired comparison, its package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.splits import random_draws
from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.evaluation.comparison import (
    Comparison,
    ComparisonSubject,
    comparable_images,
    compare,
)
from patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap import ThresholdedScores
from patchline.pipeline.evaluation.multi_label.label_set_page import (
    LabelSetComparison,
    compare_label_sets,
)
from patchline.pipeline.evaluation.promotion_decision import GateResult
from patchline.pipeline.models.provenance import UNKNOWN, ProvenanceSummary
from patchline.pipeline.packaging.clean_process_check import check_package
from patchline.pipeline.registry import promotion_gates
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.promotion_gates import champion_gates
from patchline.pipeline.registry.registered_models import ModelReference, resolve
from patchline.pipeline.registry.version_records import (
    VersionRecords,
    available_records,
    image_reader,
    load_or_predict,
    load_records,
)
from patchline.pipeline.terminal_words import few_names

Array = np.ndarray[Any, Any]
Pixels = Callable[[int], "np.ndarray[Any, Any] | None"]
OnNote = Callable[[str], None]


@dataclass(frozen=True)
class GateEvaluation:
    """The results of the gates, and the comparison behind them."""

    gates: list[GateResult]
    comparison: Comparison | LabelSetComparison | None = None
    """With the champion; none if there is no other version that is champion."""
    pixels_of: Pixels | None = None
    """Reads the image in a row of the comparison; returns none if it is gone."""
    run_id: str | None = None
    """Of the version."""
    provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the version has seen are recorded."""


def evaluate_gates(
    reference: ModelReference,
    champion: str | None,
    config: PromotionConfig,
    on_note: OnNote = lambda _: None,
) -> GateEvaluation:
    """Evaluate every gate in the config.

    Args:
        reference: the version to promote.
        champion: the version that is champion now; none if there is none.
        config: the gates.
        on_note: called with progress messages.

    Raises:
        ModelReferenceError: if files or records of a version are missing.
    """
    challenger = load_records(reference)
    provenance = challenger.provenance.summary
    manifest = challenger.manifest
    notes = [] if manifest is None else random_draws.notes(manifests.usable(manifest))
    results = promotion_gates.absolute_gates(config, challenger.metrics, "; ".join(notes))
    comparison, pixels_of = None, None
    if champion is not None and champion != reference.version:
        on_note(f"comparing with version {champion}, the champion")
        other = available_records(resolve(f"{reference.name}/{champion}"))
        comparison, pixels_of = compare_versions(other, challenger, on_note)
        results += champion_gates(config, comparison)
    if config.package_check or config.max_latency_ms is not None:
        on_note("loading the package in a clean process")
        check = check_package(challenger.folder, challenger.package)
        results += promotion_gates.package_gates(config, check)
    results.append(promotion_gates.provenance_gate(f"version {reference.version}", provenance))
    return GateEvaluation(
        gates=results,
        comparison=comparison,
        pixels_of=pixels_of,
        run_id=challenger.run_id,
        provenance=provenance,
    )


def compare_versions(
    champion: VersionRecords, challenger: VersionRecords, on_note: OnNote = lambda _: None
) -> tuple[Comparison | LabelSetComparison, Pixels]:
    """Compare two versions on images that neither used for training or model selection.

    The images are those of the challenger's test split, with its labels. A version's predictions
    come from its own run; its package predicts the images that are missing there. The packages say
    which images they have seen, so the champion's run may be gone.

    Raises:
        ModelReferenceError: if they have different classes, or one gives sets of labels.
    """
    _check_comparable(champion, challenger)
    empty = pd.DataFrame(columns=manifests.COLUMNS)
    before, now = (
        empty if each.manifest is None else each.manifest for each in (champion, challenger)
    )
    seen_images = (champion.provenance.images, challenger.provenance.images)
    chosen = comparable_images(before, now, *seen_images)
    images = chosen.images.reset_index(drop=True)
    classes = tuple(challenger.package.classes)
    root = challenger.root

    def progress(done: int, total: int) -> None:
        if done == total:
            on_note(f"predicted {total:,} images for the comparison")

    champion_NK = load_or_predict(champion, images, root, classes, progress)
    challenger_NK = load_or_predict(challenger, images, root, classes, progress)
    there = ~(np.isnan(champion_NK).any(axis=1) | np.isnan(challenger_NK).any(axis=1))
    there &= _has_labels_of(challenger, images)
    left_out = dict(chosen.left_out)
    if not there.all():
        left_out["gone, and without a recorded prediction"] = int((~there).sum())
    images, groups_N = images[there].reset_index(drop=True), chosen.groups_N[there]
    reader = image_reader(images, root, challenger.package.mapping)
    provenance = champion.provenance.summary, challenger.provenance.summary
    if challenger.package.is_multi_label:
        return compare_label_sets(
            ComparisonSubject(
                champion=champion.label,
                challenger=challenger.label,
                classes=classes,
                left_out=left_out,
                groups_N=groups_N,
                provenance=provenance,
            ),
            labels_NK=label_sets.matrix(list(images["label"]), classes),
            answers=(
                _answers(champion, champion_NK[there], classes),
                _answers(challenger, challenger_NK[there], classes),
            ),
        ), reader
    index = {label: position for position, label in enumerate(classes)}
    comparison = compare(
        ComparisonSubject(
            champion=champion.label,
            challenger=challenger.label,
            classes=classes,
            left_out=left_out,
            groups_N=groups_N,
            provenance=provenance,
        ),
        paths=list(images["path"]),
        labels_N=np.array([index[label] for label in images["label"]], dtype=np.int64),
        champion_NK=champion_NK[there],
        challenger_NK=challenger_NK[there],
    )
    return comparison, reader


def _check_comparable(champion: VersionRecords, challenger: VersionRecords) -> None:
    """Check that two versions answer the same question."""
    if champion.package.is_multi_label != challenger.package.is_multi_label:
        kinds = [_kind(each) for each in (challenger, champion)]
        raise ModelReferenceError(
            f"{challenger.label} {kinds[0]}, and the champion {champion.label} {kinds[1]}, so they "
            "cannot be compared. Register one of them under another name."
        )
    before, now = set(champion.package.classes), set(challenger.package.classes)
    if before != now:
        differences = [
            f"only {version.label} has {few_names(sorted(own))}"
            for version, own in ((challenger, now - before), (champion, before - now))
            if own
        ]
        raise ModelReferenceError(
            f"{challenger.label} and the champion {champion.label} have different classes "
            f"({'; '.join(differences)}), so they cannot be compared. Register one of them under "
            "another name."
        )


def _kind(version: VersionRecords) -> str:
    return "gives sets of labels" if version.package.is_multi_label else "gives one label"


def _has_labels_of(version: VersionRecords, images: pd.DataFrame) -> Array:
    """Return which images (N) have labels that are all of a version."""
    classes = set(version.package.classes)
    if not version.package.is_multi_label:
        return images["label"].isin(classes).to_numpy(dtype=bool)
    known = [classes.issuperset(label_sets.decoded(text)) for text in images["label"]]
    return np.array(known, bool)


def _answers(
    version: VersionRecords, probabilities_NK: Array, classes: tuple[str, ...]
) -> ThresholdedScores:
    """Return a version's probabilities, and the labels at or above its own thresholds."""
    package = version.package
    own = dict(zip(package.classes, np.array(package.thresholds_K).tolist(), strict=True))
    thresholds_K = np.array([own[label] for label in classes])
    exact_NK = probabilities_NK.astype(np.float64)
    return ThresholdedScores(exact_NK, (exact_NK >= thresholds_K).astype(np.uint8))
