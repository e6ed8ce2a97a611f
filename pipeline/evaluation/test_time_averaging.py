"""Whether an image is predicted together with its mirror image: validation decides, test reports.

The head gets the average of both, as with the model's setting `test_time_flip`, which the package
of the run then has. So every way to predict with the package does the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np

from patchline.pipeline.evaluation.metrics.image_groups import ImageGroups
from patchline.pipeline.evaluation.metrics.multi_label import paired_bootstrap
from patchline.pipeline.evaluation.metrics.multi_label.paired_bootstrap import (
    PairedMetric,
    paired_map,
)
from patchline.pipeline.evaluation.metrics.paired_test import (
    PairedDifference,
    is_better,
    paired_difference,
)
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import (
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    ModelDescription,
    load_description,
)
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.files.workspace_folder import make_folder

Array = np.ndarray[Any, Any]
SETTING = "test_time_flip"
"""Of a model, which averages an image and its mirror image when it predicts."""


class TestTimeAveraging(FrozenModel):
    """The decision, and both paired tests: b predicts each image with its mirror image."""

    __test__ = False  # no test, whatever pytest reads in the name

    state: Literal["on", "off", "not tried"]
    why: str = ""
    """Why it was not tried."""
    validation: PairedDifference | PairedMetric | None = None
    """Which decides: of the accuracy, or of the mAP of sets of labels."""
    test: PairedDifference | PairedMetric | None = None
    """Which reports what was decided; None unless it is on."""

    @property
    def is_on(self) -> bool:
        """Whether the package averages."""
        return self.state == "on"

    def sentence(self) -> str:
        """Return the decision with its numbers, as a clause."""
        if self.validation is None:
            return f"not tried, because {self.why}"
        words = f"{self.state}: {_compared(self.validation, 'validation')}"
        if self.test is not None:
            words += f"; {_compared(self.test, 'test')}"
        return words


def decided(
    plain_N: Array, averaged_N: Array, groups: ImageGroups | None = None
) -> TestTimeAveraging:
    """Return whether averaging is worth its cost.

    Args:
        plain_N: whether each validation image is predicted correctly alone.
        averaged_N: the same of the image with its mirror image.
        groups: of the images; None if these are independent.
    """
    pair = paired_difference(plain_N, averaged_N, groups)
    return TestTimeAveraging(state="on" if is_better(pair) else "off", validation=pair)


def decided_by_map(
    labels_NK: Array, plain_NK: Array, averaged_NK: Array, groups: ImageGroups | None = None
) -> TestTimeAveraging:
    """Return whether averaging is worth its cost for sets of labels.

    Args:
        labels_NK: 1 where a validation image has a label, else 0.
        plain_NK: scores of each image alone.
        averaged_NK: scores of the image with its mirror image.
        groups: of the images; None if these are independent.
    """
    pair = paired_map(labels_NK, plain_NK, averaged_NK, groups=groups)
    state: Literal["on", "off"] = "on" if paired_bootstrap.is_better(pair) else "off"
    return TestTimeAveraging(state=state, validation=pair)


def averaging(description: ModelDescription) -> ModelDescription:
    """Return the description of the same model when it averages views."""
    settings = {**description.model.model_dump(), SETTING: True}
    model = type(description.model).model_validate(settings)
    return description.model_copy(update={"model": model})


def averaging_copy(folder: Path, target: Path) -> Path:
    """Write a copy of a saved model that averages views; return its folder.

    Args:
        folder: of the model.
        target: replaced if it exists.
    """
    shutil.rmtree(target, ignore_errors=True)
    make_folder(target)
    shutil.copyfile(folder / WEIGHTS_FILE, target / WEIGHTS_FILE)
    described = averaging(load_description(folder))
    described.to_file(target / DESCRIPTION_FILE)
    return target


def _compared(pair: PairedDifference | PairedMetric, split: str) -> str:
    images = f"{pair.difference.n:,} {split} images"
    if pair.groups is not None:
        images += f" in {counted(pair.groups, 'group')}"
    if isinstance(pair, PairedMetric):
        return (
            f"on {images}, mAP is {pair.b:.1%} together with the "
            f"mirror image and {pair.a:.1%} alone (p {pair.p_value:.2g})"
        )
    return (
        f"of {images}, {pair.only_b_right} are correct only together "
        f"with the mirror image and {pair.only_a_right} only alone (p {pair.p_value:.2g})"
    )
