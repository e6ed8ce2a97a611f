"""Likely label errors: images whose class, or one of whose labels, a model confidently contradicts.

The rule is that of confident learning (Northcutt et al., arXiv 1911.00068, sections 3.1 and 3.2).
The model is sure of a class whose probability reaches its mean over the images with that label. Of
the images with a label that the model is sure about, the share whose surest class is another one
tells how many labels are wrong. So many images of that label are likely label errors: those for
which another class is more probable by most. Images that the model was trained on are compared
among themselves, because the model is surer of them.

N: images, K: classes of the model.

Each label of a set is a question of its own, answered yes or no, so what holds for two classes
holds for it: the model is sure if a probability reaches its mean over the images with the same
answer, and the share of sure images that it contradicts tells how many answers are wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, label_pairs
from patchline.pipeline.evaluation.inspection.findings import Finding, finding_on_files
from patchline.pipeline.terminal_words import by_number, counted, few_names

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Judgement:
    """What a model says about images."""

    model: str
    """Name of the model in words, such as `version 3 of flowers`."""
    classes: tuple[str, ...]
    paths: tuple[str, ...]
    """The images, all of them of the model's classes."""
    probabilities_NK: Array
    seen_N: Array | None
    """Whether the model was trained or selected on each image; None if that is not recorded."""
    by_folds: int = 0
    """How many images were judged by models of folds that were not trained on them."""
    caveat: str = ""
    """What follows if it is not known which images the model's ancestors were trained on."""
    left_out: tuple[str, ...] = ()
    """Classes of the data that the model does not have."""

    def notes(self) -> list[str]:
        """Return what limits the search, in sentences."""
        notes = []
        if self.left_out:
            notes.append(
                "the labels of classes that the model does not have were not checked: "
                f"{few_names(self.left_out)}"
            )
        if self.by_folds:
            notes.append(
                f"{self.by_folds:,} of the {len(self.paths):,} images whose labels were checked "
                f"were judged by the folds of {self.model} that were not trained on them"
            )
        if self.caveat:
            notes.append(self.caveat)
        elif self.seen_N is None:
            notes.append(f"it is not recorded which images {self.model} was trained on")
        if self.seen_N is not None and (count := int(self.seen_N.sum())):
            notes.append(
                f"{self.model} was trained or selected on {count:,} of the {len(self.paths):,} "
                "images whose labels were checked; it may have memorized their wrong labels, so a "
                "run with folds (training.folds), or a model trained on other images, finds more"
            )
        return notes


def findings_on_labels(rows: pd.DataFrame, judgement: Judgement) -> list[Finding]:
    """Return the likely label errors, the surest first.

    Args:
        rows: the usable images; those that the model did not judge are not reported.
        judgement: what a model says about the images.
    """
    labels = rows.drop_duplicates("path").set_index("path").loc[list(judgement.paths), "label"]
    places = {name: place for place, name in enumerate(judgement.classes)}
    labels_N = labels.map(places).to_numpy(np.int64)
    seen_N = np.zeros(len(labels_N), bool) if judgement.seen_N is None else judgement.seen_N
    likely_N, margins_N = likely_labels(labels_N, judgement.probabilities_NK, seen_N)
    wrong = np.flatnonzero(likely_N != labels_N)
    if not len(wrong):
        return []
    wrong = wrong[np.argsort(-margins_N[wrong], kind="stable")]
    files = [judgement.paths[row] for row in wrong]
    details = {
        judgement.paths[row]: _detail(
            judgement.classes, labels_N[row], likely_N[row], judgement.probabilities_NK[row]
        )
        for row in wrong
    }
    agrees = (judgement.probabilities_NK.argmax(axis=1) == labels_N).mean()
    return [
        finding_on_files(
            "label_error",
            "warning",
            files,
            f"{counted(len(files), 'image looks', 'images look')} like another class than "
            f"{by_number(len(files), 'its', 'their')} own to {judgement.model}, which agrees with "
            f"{agrees:.1%} of the labels.",
            "Trains on them with their current labels. Look at them, the most confident first, "
            "and correct the labels or exclude the mislabelled images.",
            details=details,
        )
    ]


def likely_labels(labels_N: Array, probabilities_NK: Array, seen_N: Array) -> tuple[Array, Array]:
    """Return the likely class of each image, and by how much it is more probable than the label.

    Args:
        labels_N: the class of each image, as its label says.
        probabilities_NK: probabilities of the classes, as the model gives them.
        seen_N: whether the model was trained on each image.

    Returns:
        The labels, except those of likely errors; and the differences of probabilities, else 0.
    """
    likely_N, margins_N = labels_N.copy(), np.zeros(len(labels_N))
    never_K = np.full(probabilities_NK.shape[1], 2.0)  # more than any probability
    usual_K = _usual(labels_N, probabilities_NK, never_K)
    for group in (np.flatnonzero(seen_N), np.flatnonzero(~seen_N)):
        labels, probabilities = labels_N[group], probabilities_NK[group]
        own = np.arange(len(group)), labels
        others = probabilities.copy()
        others[own] = -1.0
        margins = others.max(axis=1) - probabilities[own]
        for label, count in _estimate_errors(labels, probabilities, usual_K):
            rows = np.flatnonzero(labels == label)
            rows = rows[np.argsort(-margins[rows], kind="stable")][:count]
            rows = rows[margins[rows] > 0]
            likely_N[group[rows]] = others[rows].argmax(axis=1)
            margins_N[group[rows]] = margins[rows]
    return likely_N, margins_N


def _estimate_errors(
    labels_N: Array, probabilities_NK: Array, otherwise_K: Array
) -> Iterator[tuple[int, int]]:
    """Yield each label, and how many of the images with it are probably of another class."""
    usual_K = _usual(labels_N, probabilities_NK, otherwise_K)
    ranked = np.where(probabilities_NK >= usual_K, probabilities_NK, -1.0)
    best_N = ranked.argmax(axis=1)
    sure_N = ranked.max(axis=1) >= 0
    for label in np.unique(labels_N):
        own_N = labels_N == label
        wrong = int((own_N & sure_N & (best_N != label)).sum())
        if wrong:
            yield int(label), round(wrong * own_N.sum() / (own_N & sure_N).sum())


def _usual(labels_N: Array, probabilities_NK: Array, without_images_K: Array) -> Array:
    """Return the mean probability of each class over the images with its label."""
    usual_K = without_images_K.copy()
    for label in np.unique(labels_N):
        usual_K[label] = probabilities_NK[labels_N == label, label].mean()
    return usual_K


def _detail(classes: Sequence[str], label: int, likely: int, probabilities_K: Array) -> str:
    return (
        f"looks like {classes[likely]} ({probabilities_K[likely]:.0%}), "
        f"not {classes[label]} ({probabilities_K[label]:.0%})"
    )


def findings_on_label_sets(rows: pd.DataFrame, judgement: Judgement) -> list[Finding]:
    """Return the images whose sets probably lack a label, or have a wrong one, the surest first.

    Args:
        rows: the usable images; those that the model did not judge are not reported.
        judgement: what a multi-label model says about the images; labels that no image has, or all
            have, are skipped.
    """
    texts = rows.drop_duplicates("path").set_index("path").loc[list(judgement.paths), "label"]
    pairs, images = label_pairs(texts, MULTI_LABEL), len(texts)
    seen_N = np.zeros(images, np.bool_) if judgement.seen_N is None else judgement.seen_N
    details: dict[int, list[tuple[float, str]]] = {}
    agrees, checked = 0, 0
    for place, name in enumerate(judgement.classes):
        labels_N = np.zeros(images, np.int64)
        labels_N[pairs.images_of(name)] = 1
        if labels_N.min() == labels_N.max():
            continue
        yes_N = judgement.probabilities_NK[:, place].astype(np.float64)
        likely_N, margins_N = likely_labels(labels_N, np.stack([1 - yes_N, yes_N], axis=1), seen_N)
        agrees += int(((yes_N >= 1 / 2) == (labels_N == 1)).sum())
        checked += images
        for row in np.flatnonzero(likely_N != labels_N).tolist():
            what = "lacks" if likely_N[row] else "has"
            text = f"{what} {name}, whose probability is {yes_N[row]:.0%}"
            details.setdefault(row, []).append((float(margins_N[row]), text))
    if not details:
        return []
    order = sorted(details, key=lambda row: (-max(details[row])[0], row))
    count = len(order)
    return [
        finding_on_files(
            "label_error",
            "warning",
            [judgement.paths[row] for row in order],
            f"{count:,} {by_number(count, 'image seems', 'images seem')} to lack a label or to "
            f"have a wrong one by {judgement.model}, which agrees with {agrees / checked:.1%} of "
            "the answers whether an image has a label.",
            "Trains on them with their current labels. Look at them, the most confident first, "
            "and correct the labels or exclude the mislabelled images.",
            details={
                judgement.paths[row]: "; ".join(
                    text for _, text in sorted(details[row], reverse=True)
                )
                for row in order
            },
        )
    ]
