"""Find labels that a set probably lacks or has wrongly, by what a model of several labels predicts.

Each label is a question of its own, answered yes or no, so what holds for two classes holds for it
(see `label_errors`): the model is sure if a probability reaches its mean over the images with the
same answer, and the share of sure images that it contradicts tells how many answers are wrong.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels.label_pairs import label_pairs
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.evaluation.inspection.finding import Finding, finding_on_files
from patchline.pipeline.evaluation.inspection.label_errors import Judgement, likely_labels
from patchline.pipeline.terminal_words import by_number


def findings_on_label_sets(rows: pd.DataFrame, judgement: Judgement) -> list[Finding]:
    """Return the images whose sets probably lack a label, or have a wrong one, the surest first.

    Args:
        rows: the usable images; those that the model did not judge are not reported.
        judgement: of a model of several labels; labels that no image has, or all have, are skipped.
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
