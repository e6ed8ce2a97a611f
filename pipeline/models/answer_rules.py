"""What a package knows about the reliability of its answers, in `model.json` under `answers`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from patchline.pipeline.frozen_model import FrozenModel

VALIDATION = "the validation images"
"""The basis of rules whose images the final model predicts and was not trained on."""


class SetThreshold(FrozenModel):
    """The threshold of prediction sets for one coverage."""

    coverage: float
    """Nominal: the share of new images like the held-out ones whose set holds the true class."""
    least_probability: float | None
    """A set holds every class with at least this probability; None if it is not known."""
    by_class: tuple[float, ...] = ()
    """With enough images of every class: one such threshold for each, used instead, so that the
    coverage holds for each class."""
    unknown: str = ""
    """Why it is not known."""


class AnswerRules(FrozenModel):
    """Thresholds of prediction sets, and limits beyond which an image gets a warning.

    They come from held-out images by split conformal prediction
    (`patchline.pipeline.evaluation.metrics.conformal`). A limit of None gives no warning: the image
    may or may not be of that kind.
    """

    coverage: float
    """Of the sets, unless another one is asked for."""
    thresholds: tuple[SetThreshold, ...]
    """By rising coverage."""
    images: int
    """Number of held-out images that the thresholds come from."""
    groups: int = 0
    """Number of their groups, which have equal weight; 0 if the images have no groups."""
    basis: str
    """Which images these are, in words."""
    false_alarms: float
    """Probability of the warning `far` for a new image like the held-out ones."""
    dark: float | None = None
    """99th percentile of the grey values (0 to 255) below which an image is dark."""
    blurred: float | None = None
    """Sharpness below which an image is blurred."""
    least_side: float | None = None
    """Pixels on the shorter side below which an image is too small."""
    far: float | None = None
    """Distance to the reference features beyond which an image is unlike those seen."""
    far_split: Literal["validation", "test"] = "validation"
    """Split of the run that the reference and the distance come from: the images that the final
    model was not trained on."""
    unknown: dict[str, str] = Field(default_factory=dict)
    """Why a limit is not known, by the kind of the warning."""

    @property
    def on_coverage(self) -> str:
        """What the coverage of sets means, in a sentence."""
        if self.basis == VALIDATION:
            return (
                "coverage is an average over new images like the validation images, not a "
                "probability for one image"
            )
        return (
            "coverage is measured, but not guaranteed: the thresholds come from predictions of "
            "other models than this one"
        )
