"""What the report of every model has, whether an image has one label or a set of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from pydantic import Field

from patchline.pipeline.evaluation.config import EvaluationConfig
from patchline.pipeline.evaluation.headline import Headline
from patchline.pipeline.evaluation.metrics.calibration import ReliabilityBin
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.test_time_averaging import TestTimeAveraging
from patchline.pipeline.evaluation.visual_guide.covering_result import CoveringTest
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance.provenance import UNKNOWN, ProvenanceSummary
from patchline.pipeline.terminal_words import counted


class ModelReport(FrozenModel, ABC):
    """The result of an evaluation on one split."""

    name: str
    split: str
    data_fingerprint: str
    images_fingerprint: str = ""
    """Version of the images of this report: equal for two models that saw the same ones."""
    images: int
    groups: int | None = None
    """Number of groups that the images form, such as patients; None if no two are of one group."""
    classes: tuple[str, ...]
    """In the order of the model's outputs."""
    metrics: dict[str, MetricEstimate]
    """Metrics by name, prefixed with the split: `test/accuracy`."""
    computed_by: str = ""
    """What computed the probabilities, in words."""
    reliability: tuple[ReliabilityBin, ...]
    """Reliability of the calibrated probabilities."""
    uncalibrated_reliability: tuple[ReliabilityBin, ...]
    """Reliability without calibration."""
    uncalibrated_ece: MetricEstimate
    """Expected calibration error without calibration."""
    undivided: dict[str, str] = Field(default_factory=dict)
    """Requested columns that have one value for all images, with that value."""
    provenance: ProvenanceSummary = UNKNOWN
    """Whether all images that the model has seen are recorded, so that these images are not among
    them."""
    covering_test: CoveringTest | None = None
    """Whether maps of attention and gradient mean anything for this model; only of runs."""
    averaging: TestTimeAveraging | None = None
    """Whether the model predicts each image with its mirror image; None if that is as trained."""
    config: EvaluationConfig

    @property
    def corrupted_metrics(self) -> dict[str, MetricEstimate]:
        """Metrics on corrupted images by name, without the split; empty if there are none."""
        return {}

    @property
    def with_robustness(self) -> Self:
        """The same report, whose metrics include those on corrupted images."""
        further = {f"{self.split}/{key}": value for key, value in self.corrupted_metrics.items()}
        if not further:
            return self
        return self.model_copy(update={"metrics": {**self.metrics, **further}})

    @property
    def groups_note(self) -> str:
        """What the groups of the images mean for the intervals; empty if there are none."""
        if self.groups is None:
            return ""
        return (
            f"these {self.images:,} images form {counted(self.groups, 'group')}: the intervals "
            "take groups, not images, as independent, so they are wider than those of as many "
            "images without groups"
        )

    @property
    @abstractmethod
    def headline(self) -> Headline:
        """The metric by which models are compared; each kind of report has its own."""
