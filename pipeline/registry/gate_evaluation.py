"""Evaluate the gates for a version: its test metrics, the paired comparison, its package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import are_known
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.splits import random_draws
from patchline.pipeline.errors import ModelReferenceError
from patchline.pipeline.evaluation.comparison import ComparisonSubject, comparable_images
from patchline.pipeline.evaluation.promotion_decision import GateResult
from patchline.pipeline.evaluation.tasks import AnyComparison
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
    comparison: AnyComparison | None = None
    """The comparison with the champion; none if there is no other version that is champion."""
    pixels_of: Pixels | None = None
    """Reads the image in a row of the comparison; returns none if it is gone."""
    run_id: str | None = None
    """ID of the run that registered the version; None if it has none."""
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
) -> tuple[AnyComparison, Pixels]:
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
    task, classes = challenger.task, tuple(challenger.package.classes)
    root = challenger.root

    def progress(done: int, total: int) -> None:
        if done == total:
            on_note(f"predicted {total:,} images for the comparison")

    champion_NK = load_or_predict(champion, images, root, classes, progress)
    challenger_NK = load_or_predict(challenger, images, root, classes, progress)
    there = ~(np.isnan(champion_NK).any(axis=1) | np.isnan(challenger_NK).any(axis=1))
    there &= are_known(images["label"], classes, task.name)
    left_out = dict(chosen.left_out)
    if not there.all():
        left_out["gone, and without a recorded prediction"] = int((~there).sum())
    images, groups_N = images[there].reset_index(drop=True), chosen.groups_N[there]
    reader = image_reader(images, root, challenger.package.mapping)
    before, now = (
        task.answers(version.package, probabilities_NK[there], classes)
        for version, probabilities_NK in ((champion, champion_NK), (challenger, challenger_NK))
    )
    comparison = task.compare(
        ComparisonSubject(
            champion=champion.label,
            challenger=challenger.label,
            classes=classes,
            left_out=left_out,
            groups_N=groups_N,
            provenance=(champion.provenance.summary, challenger.provenance.summary),
        ),
        list(images["path"]),
        task.labels(list(images["label"]), classes),
        before,
        now,
    )
    return comparison, reader


def _check_comparable(champion: VersionRecords, challenger: VersionRecords) -> None:
    """Check that two versions answer the same question."""
    if champion.task != challenger.task:
        raise ModelReferenceError(
            f"{challenger.label} gives {challenger.task.gives}, and the champion {champion.label} "
            f"gives {champion.task.gives}, so they cannot be compared. Register one of them under "
            "another name."
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
