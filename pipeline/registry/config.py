"""Settings for promotion: the gates that a version has to pass to become champion."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from patchline.pipeline.evaluation.metrics.names import ALL_METRICS as METRICS
from patchline.pipeline.former_settings import section_with_todays_names
from patchline.pipeline.frozen_model import DocumentedModel


def _check_metric(metric: str) -> None:
    if metric in METRICS:
        return
    close = difflib.get_close_matches(metric, METRICS, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise ValueError(f"'{metric}' is not a metric; {hint}choose from: {', '.join(METRICS)}")


def _limits(*, higher_is_better: bool) -> AfterValidator:
    """Return the check that metrics may have a minimum, or else a maximum."""
    direction, other = ("lower", "maximum") if higher_is_better else ("higher", "minimum")

    def checked(limits: dict[str, float]) -> dict[str, float]:
        for metric, limit in limits.items():
            _check_metric(metric)
            if METRICS[metric].higher_is_better != higher_is_better:
                raise ValueError(
                    f"{direction} is better for '{metric}'; set promotion.{other} instead"
                )
            if higher_is_better and limit > 1:
                raise ValueError(f"'{metric}' never exceeds 1; write 90% as 0.9")
        return limits

    return AfterValidator(checked)


class GateConfig(DocumentedModel):
    """Gates that a version has to pass before it becomes champion."""

    approval_hours: Annotated[float, Field(gt=0, le=8760)] = 72
    """Hours until an unanswered approval request expires and the version is not promoted."""

    minimum: Annotated[dict[str, float], _limits(higher_is_better=True)] = Field(
        default_factory=dict
    )
    """Minimum values of test metrics where higher is better: promotion.minimum.accuracy 0.9."""

    maximum: Annotated[dict[str, float], _limits(higher_is_better=False)] = Field(
        default_factory=dict
    )
    """Maximum values of test metrics where lower is better: promotion.maximum.log_loss 0.5."""

    significance: Annotated[float, Field(gt=0, le=1)] = 0.05
    """Maximum p-value of the paired test for a version to count as better than the champion:
    McNemar's exact test of the accuracy; with sets of labels, a paired bootstrap of mAP. Images of
    one group, such as a patient, are tested as a whole, and a tie does not pass. 1 to promote a
    version that is not better, too."""

    min_images: Annotated[int, Field(ge=1)] = 50
    """Minimum number of images that neither model used for training or model selection; with fewer,
    the version does not count as better. Images of one group, such as a patient, count once."""

    max_class_drop: Annotated[float, Field(gt=0, le=1)] | None = 0.1
    """Maximum loss of recall in any class compared with the champion (of average precision in any
    label, with sets of labels); null for no limit. If no class has 20 compared images, the gate
    says that it was not checked, and the promotion does not depend on it."""

    max_latency_ms: Annotated[float, Field(gt=0)] | None = None
    """Maximum median time for one image on this machine, in milliseconds; null for no limit."""

    package_check: bool = True
    """Require the package to load in a clean process and give the same probabilities there."""

    @model_validator(mode="before")
    @classmethod
    def _read_former_settings(cls, values: Any) -> Any:
        return section_with_todays_names("promotion", values)


class PromotionConfig(GateConfig):
    """The gates, and what happens at the end of a run."""

    automatic: bool = False
    """Promote after a run if no gate fails; if false, only the first version of a model is promoted
    there, and later ones by `patchline promote`."""

    approval: bool = False
    """Request approval at the end of a run, unless the model never had a champion; needs `patchline
    up`."""
