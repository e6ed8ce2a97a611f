"""Hold a version against the gates: its own figures, the champion's, its package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.evaluation.comparison import Comparison, comparable_images, compare
from pipeline.evaluation.promotion_decision import GateResult
from pipeline.packaging.clean_process_check import check_package
from pipeline.registry import gates
from pipeline.registry.config import PromotionConfig
from pipeline.registry.evidence import Evidence, gather, pixels_for_page, probabilities_of
from pipeline.registry.registered_models import ModelReference, resolve

Pixels = Callable[[int], "np.ndarray[Any, Any] | None"]
OnNote = Callable[[str], None]


@dataclass(frozen=True)
class Judgement:
    """What the gates said, and what they looked at."""

    gates: list[GateResult]
    comparison: Comparison | None = None
    """With the champion; none if there is no other champion."""
    pixels_of: Pixels | None = None
    """Reads the image in a row of the comparison."""
    run_id: str | None = None
    """The run of the version that was judged."""


def judge(
    reference: ModelReference,
    champion: str | None,
    config: PromotionConfig,
    on_note: OnNote = lambda _: None,
) -> Judgement:
    """Ask every gate that the config names.

    Args:
        reference: the version that wants to become champion.
        champion: the version that is champion now; none if there is none.
        config: the gates.
        on_note: told what is being done.

    Raises:
        ModelReferenceError: if the files or the records of a version are gone.
    """
    challenger = gather(reference)
    results = gates.absolute_gates(config, challenger.metrics)
    comparison, pixels_of = None, None
    if champion is not None and champion != reference.version:
        on_note(f"comparing with version {champion}, the champion")
        other = gather(resolve(f"{reference.name}/{champion}"))
        comparison, pixels_of = compare_versions(other, challenger, on_note)
        results += gates.comparison_gates(config, comparison)
    if config.package_check or config.max_latency_ms is not None:
        on_note("loading the package in a clean process")
        check = check_package(challenger.folder, challenger.package)
        results += gates.package_gates(config, check)
    return Judgement(
        gates=results, comparison=comparison, pixels_of=pixels_of, run_id=challenger.run_id
    )


def compare_versions(
    champion: Evidence, challenger: Evidence, on_note: OnNote = lambda _: None
) -> tuple[Comparison, Pixels]:
    """Compare two versions on the images that neither was trained or chosen on.

    The images are those of the challenger's test split, with its labels. What a version has said
    about an image is taken from its own run's predictions; where it has not seen the image, its
    package answers now.
    """
    chosen = comparable_images(champion.manifest, challenger.manifest)
    images = chosen.images.reset_index(drop=True)
    classes = tuple(challenger.package.classes)
    root = challenger.root

    def progress(done: int, total: int) -> None:
        if done == total:
            on_note(f"{total} images were predicted for the comparison")

    champion_NK = probabilities_of(champion, images, root, classes, progress)
    challenger_NK = probabilities_of(challenger, images, root, classes, progress)
    there = ~(np.isnan(champion_NK).any(axis=1) | np.isnan(challenger_NK).any(axis=1))
    there &= images["label"].isin(classes).to_numpy(dtype=bool)
    left_out = dict(chosen.left_out)
    if not there.all():
        left_out["gone, and without a recorded prediction"] = int((~there).sum())
    images = images[there].reset_index(drop=True)
    index = {label: position for position, label in enumerate(classes)}
    comparison = compare(
        champion=champion.label,
        challenger=challenger.label,
        classes=classes,
        paths=list(images["path"]),
        labels_N=np.array([index[label] for label in images["label"]], dtype=np.int64),
        champion_NK=champion_NK[there],
        challenger_NK=challenger_NK[there],
        left_out=left_out,
    )
    return comparison, pixels_for_page(images, root)
