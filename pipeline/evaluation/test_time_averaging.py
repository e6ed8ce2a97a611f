"""Whether an image is predicted together with its mirror image: validation decides, test reports.

The head gets the average of both, as with the model's setting `test_time_flip`, which the package
of the run then has. So every way to predict with the package does the same.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from patchline.pipeline.evaluation.metrics.multi_label.label_set_metrics import PairedMetric
from patchline.pipeline.evaluation.metrics.paired_test import PairedDifference, is_better
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import (
    DESCRIPTION_FILE,
    WEIGHTS_FILE,
    ModelDescription,
    load_description,
)
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.files.workspace_folder import make_folder

SETTING = "test_time_flip"
"""Of a model, which averages an image and its mirror image when it predicts."""


class TestTimeAveraging(FrozenModel):
    """The decision, and both paired tests: b predicts each image with its mirror image."""

    __test__ = False  # no test, whatever pytest reads in the name

    state: Literal["on", "off", "not tried"]
    why: str = ""
    """Why it was not tried."""
    validation: PairedDifference | PairedMetric | None = None
    """Paired test on the validation images, which decides: of the accuracy, or of the mAP of sets
    of labels."""
    test: PairedDifference | PairedMetric | None = None
    """Paired test on the test images, which reports what was decided; None unless averaging is
    on."""

    @property
    def is_on(self) -> bool:
        """Whether the package averages."""
        return self.state == "on"

    def sentence(self) -> str:
        """Return the decision with its numbers, as a clause."""
        if self.validation is None:
            return f"not tried, because {self.why}"
        words = f"{self.state}: {_describe_comparison(self.validation, 'validation')}"
        if self.test is not None:
            words += f"; {_describe_comparison(self.test, 'test')}"
        return words


def decide(pair: PairedDifference | PairedMetric) -> TestTimeAveraging:
    """Return whether averaging is worth its cost.

    Args:
        pair: paired test of the validation images: alone, and with their mirror images.
    """
    return TestTimeAveraging(state="on" if is_better(pair) else "off", validation=pair)


def averaging(description: ModelDescription) -> ModelDescription:
    """Return the description of the same model when it averages views."""
    settings = {**description.model.model_dump(), SETTING: True}
    model = type(description.model).model_validate(settings)
    return description.model_copy(update={"model": model})


def averaging_copy(folder: Path, target: Path) -> Path:
    """Write a copy of a saved model that averages views; return its folder.

    Args:
        folder: the folder of the saved model.
        target: the folder of the copy, which is replaced if it exists.
    """
    shutil.rmtree(target, ignore_errors=True)
    make_folder(target)
    shutil.copyfile(folder / WEIGHTS_FILE, target / WEIGHTS_FILE)
    described = averaging(load_description(folder))
    described.to_file(target / DESCRIPTION_FILE)
    return target


def _describe_comparison(pair: PairedDifference | PairedMetric, split: str) -> str:
    images = f"{pair.difference.n:,} {split} images"
    if pair.groups is not None:
        images += f" in {counted(pair.groups, 'group')}"
    return f"{pair.mirrored(images)} (p {pair.p_value:.2g})"
