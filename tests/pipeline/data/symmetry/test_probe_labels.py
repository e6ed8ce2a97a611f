"""The label of an image that a mirror probe goes by."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pandas as pd

from patchline.pipeline.data.pixel_values.pixel_mapping import PLAIN
from patchline.pipeline.data.symmetry.mirror_symmetry import Files, measured_symmetry
from patchline.pipeline.data.symmetry.probe_labels import with_one_label
from patchline.pipeline.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, encoded


def test_every_label_stands_for_some_images() -> None:
    """Labels take turns; images without labels have a class of their own; classes stay."""
    sets = [["a", "b"], ["a"], ["b", "a"], ["a", "c", "b"], []] * 10
    rows = pd.DataFrame({"label": [encoded(each) for each in sets]})
    rows["sha256"] = [f"{number:064x}" for number in range(50)]
    labels = with_one_label(rows, MULTI_LABEL)["label"]
    assert all(name in each or not each for name, each in zip(labels, sets, strict=True))
    counts = labels.value_counts().to_dict()
    assert counts.pop("no label") == 10
    assert set(counts) == {"a", "b", "c"}
    assert max(counts.values()) - min(counts.values()) <= 7
    shuffled = with_one_label(rows.sample(frac=1, random_state=0), MULTI_LABEL)["label"]
    assert shuffled.sort_index().tolist() == labels.tolist()
    single = pd.DataFrame({"label": ["x", "y"]})
    assert with_one_label(single, SINGLE_LABEL) is single


def test_sets_with_left_and_right_arrows_are_not_symmetric(tmp_path: Path) -> None:
    """Both directions occur, so that only the labels tell that a mirrored image is another one."""
    generator = np.random.default_rng(0)
    rows = []
    for number in range(240):
        image = generator.normal(128, 8, (48, 48, 3))
        left = number % 2 == 0
        wedge = np.abs(np.arange(48)[:, None] - 24) < np.arange(48)[None, :] / 2
        image[wedge[:, ::-1] if left else wedge] += 80
        extra = [f"x{k}" for k in range(4) if generator.random() < 0.7]
        image[:6, :, 1] += 20 * len(extra)
        file = tmp_path / f"{number}.png"
        cv2.imwrite(str(file), np.clip(image, 0, 255).astype(np.uint8))
        rows.append((file.name, encoded([*extra, "left" if left else "right"]), f"{number:064x}"))
    table = pd.DataFrame(rows, columns=["path", "label", "sha256"])
    table = table.assign(group="", pixels=table["sha256"].str[-32:], width=48, height=48)
    one = with_one_label(table, MULTI_LABEL)
    symmetry = measured_symmetry(one, Files(tmp_path, PLAIN), tmp_path / "work")
    assert symmetry.answer == "asymmetric"
    assert {"left", "right"} & set(symmetry.classes)
