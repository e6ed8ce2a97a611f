"""Logits of images with sets of labels, as a prediction worker leaves them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from patchline.pipeline.data.labels import label_sets

LABELS = ("circle", "red", "square", "unseen")


def logits_table(images: int = 300, *, skill: float = 3.0) -> pd.DataFrame:
    """Return rows of a manifest with logits; the second half is the test split.

    No test image has the last label, and five validation images have it.
    """
    generator = np.random.default_rng(0)
    truth = (generator.random((images, 4)) < (0.2, 0.5, 0.3, 0)).astype(np.uint8)
    is_test = np.arange(images) >= images // 2
    truth[:5, 3] = 1
    logits = skill * (truth - 0.5) + generator.normal(size=(images, 4))
    return pd.DataFrame(
        {
            "path": [f"images/{number}.png" for number in range(images)],
            "sha256": [f"{number:064x}" for number in range(images)],
            "split": np.where(is_test, "test", "validation"),
            "label": [
                label_sets.encode_labels(LABELS[k] for k in np.flatnonzero(row).tolist())
                for row in truth
            ],
            "group": "",
            "mode": "RGB",
            "width": 8,
            "height": 8,
            "bytes": 100,
            "row": np.arange(images),
            "logits": list(logits.astype(np.float32)),
        }
    )
