"""Metrics and splits of sets of labels beside torchmetrics and scikit-multilearn.

    python -m benchmarks.label_set_peers

Neither is a dependency: install torchmetrics and scikit-multilearn beside Patchline first. It
prints the largest difference of each metric from torchmetrics' over 20 made-up models. Then how far
a split of a fifth is off with our iterative stratification, with scikit-multilearn's, and at random
(means over 20 seeds): the share of a label's images that the split has, the worst label in images,
the size of the split in images, and the share of the split's images that have a label, which is off
for either reason.
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measured_runs import machine
from patchline.pipeline.data.labels.label_sets import LabelPairs
from patchline.pipeline.data.splits.stratification import NEW, Stratum, stratify
from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import multi_label_metrics

Array = np.ndarray[Any, Any]
_SEEDS, _IMAGES, _LABELS, _SHARE = 20, 400, 12, 0.2


def _labels(generator: np.random.Generator) -> Array:
    """Return sets of labels on 4% to 40% of the images."""
    shares = np.geomspace(0.04, 0.4, _LABELS)
    return (generator.random((_IMAGES, _LABELS)) < shares).astype(np.uint8)


def metric_differences() -> dict[str, float]:
    """Return the largest difference of each metric from that of torchmetrics."""
    from torchmetrics.functional import classification as peer

    largest: dict[str, float] = {}
    for seed in range(_SEEDS):
        generator = np.random.default_rng(seed)
        labels = _labels(generator)
        scores = 1 / (1 + np.exp(1 - 2.0 * labels - generator.normal(size=labels.shape)))
        scores = scores.astype(np.float32)
        predicted = (scores >= 0.5).astype(np.uint8)  # noqa: PLR2004 - torchmetrics' default
        ours = multi_label_metrics(scores, labels, predicted)
        given = torch.from_numpy(scores), torch.from_numpy(labels.astype(np.int64))
        theirs = {
            "mAP": peer.multilabel_average_precision(*given, _LABELS, "macro"),
            "micro_mAP": peer.multilabel_average_precision(*given, _LABELS, "micro"),
            "macro_f1": peer.multilabel_f1_score(*given, _LABELS, average="macro"),
            "micro_f1": peer.multilabel_f1_score(*given, _LABELS, average="micro"),
            "macro_precision": peer.multilabel_precision(*given, _LABELS, average="macro"),
            "macro_recall": peer.multilabel_recall(*given, _LABELS, average="macro"),
            "exact_match": peer.multilabel_exact_match(*given, _LABELS),
            "ranking_loss": peer.multilabel_ranking_loss(*given, _LABELS),
            "coverage_error": peer.multilabel_coverage_error(*given, _LABELS),
        }
        for name, value in theirs.items():
            largest[name] = max(largest.get(name, 0.0), abs(ours[name].value - float(value)))
    return largest


class Off(NamedTuple):
    """How far a part is off, on average over the labels where there are several values."""

    of_label: float
    """The share of a label's images that the part has, in points."""
    worst: float
    """The images of the worst label."""
    size: float
    """The images of the part."""
    of_part: float
    """The share of the part's images that have a label, in points."""


def _off(labels: Array, part: Array) -> Off:
    """Return how far a part (N,) of bool is off."""
    images = np.abs(labels[part].sum(axis=0) - _SHARE * labels.sum(axis=0))
    of_part = np.abs(labels[part].mean(axis=0) - labels.mean(axis=0))
    return Off(
        float(100 * (images / labels.sum(axis=0)).mean()),
        float(images.max()),
        float(abs(part.sum() - _SHARE * len(labels))),
        float(100 * of_part.mean()),
    )


def split_deviations() -> dict[str, Off]:
    """Return how far each way to split is off, on average."""
    from skmultilearn.model_selection import IterativeStratification

    found: dict[str, list[Off]] = {"patchline": [], "scikit-multilearn": [], "random": []}
    for seed in range(_SEEDS):
        generator = np.random.default_rng(seed)
        labels = _labels(generator)
        images, numbers = np.nonzero(labels)
        pairs = LabelPairs(images, numbers, tuple(f"label {k:02}" for k in range(_LABELS)))
        new = np.full(_IMAGES, NEW)
        stratum = Stratum(np.arange(_IMAGES), pairs, new, generator.random(_IMAGES))
        ours = stratify(stratum, (1 - _SHARE, _SHARE)) == 1
        np.random.seed(seed)  # noqa: NPY002 - scikit-multilearn draws from the global generator
        peer = IterativeStratification(
            2, order=1, sample_distribution_per_fold=[_SHARE, 1 - _SHARE]
        )
        _, theirs = next(peer.split(np.zeros((_IMAGES, 1)), labels))
        drawn = generator.permutation(_IMAGES)[: round(_SHARE * _IMAGES)]
        numbers = np.arange(_IMAGES)
        parts = {
            "patchline": ours,
            "scikit-multilearn": np.isin(numbers, theirs),
            "random": np.isin(numbers, drawn),
        }
        for name, part in parts.items():
            found[name].append(_off(labels, part))
    return {name: Off(*np.mean(each, axis=0).tolist()) for name, each in found.items()}


def main() -> None:
    """Print both comparisons."""
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    print(machine(), flush=True)
    for name, difference in metric_differences().items():
        print(f"{name}: largest difference from torchmetrics {difference:.1e}", flush=True)
    for name, off in split_deviations().items():
        print(
            f"{name}: off by {off.of_label:.2f} points of a label's images ({off.worst:.1f} images "
            f"of the worst label), {off.size:.1f} images in size, {off.of_part:.2f} points of the "
            "part's images"
        )


if __name__ == "__main__":
    main()
