"""Write `model_card.md` of a package: what the model does, how to use it, metrics and limitations.

Follows Mitchell et al., Model Cards for Model Reporting (arXiv 1810.03993), as far as the packaging
worker knows the answers.
"""

from __future__ import annotations

from pydantic import Field

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.names import ALL_METRICS
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.provenance import UNKNOWN, ProvenanceSummary
from patchline.pipeline.plugin_system.plugin_settings import name_patch_embedding
from patchline.pipeline.templates import render_markdown
from patchline.plugin_api import NO_PATCH_EMBEDDING


class CardLabel(FrozenModel):
    """What is known about one label of a multi-label model."""

    images: int
    """Number of test images that have it."""
    average_precision: MetricEstimate | None
    """Average precision of the label; None where no test image tells it."""


class CardFacts(FrozenModel):
    """Facts about a model that are known to its training run but not in its description."""

    name: str = ""
    """Name of the model in the registry."""
    images: dict[str, int] = Field(default_factory=dict)
    """Number of images by split."""
    metrics: dict[str, MetricEstimate] = Field(default_factory=dict)
    """Metrics with their confidence intervals, by `SPLIT/metric`."""
    labels: tuple[CardLabel, ...] = ()
    """The labels of a multi-label model, in the order of the outputs."""
    answers: tuple[str, ...] = ()
    """What was measured of prediction sets and warnings, in words."""
    initial_weights: str = ""
    """What training started from; empty for random weights."""
    taught_by: str = ""
    """The teacher whose predictions it was trained towards, in words; empty without one."""
    license: str = ""
    """License of the published initial weights; empty if it is not known."""
    seen_before: tuple[str, ...] = ()
    """What the initial weights have seen of the images that the metrics belong to."""
    training: str = ""
    """Duration and device of the training, in words."""
    commit: str = ""
    """Commit of Patchline's source."""


def model_card(
    description: ModelDescription,
    facts: CardFacts,
    *,
    parameters: int,
    check: str,
    latency: str = "",
    provenance: ProvenanceSummary = UNKNOWN,
) -> str:
    """Return the card as Markdown, without paths of the machine.

    Args:
        description: the content of `model.json`.
        facts: facts from the training run.
        parameters: number of parameters.
        check: how closely the package matches what is reported, in words.
        latency: how long batches took when it was packaged, in words.
        provenance: whether all images that the weights have seen are recorded.
    """
    kind = "classifier" if description.classes else "encoder"
    embedding = name_patch_embedding(description.model).name
    return render_markdown(
        f"{'label_set' if description.is_multi_label else kind}_card.md.j2",
        __package__,
        description=description,
        facts=facts,
        embedding="" if embedding == NO_PATCH_EMBEDDING else embedding,
        parameters=parameters,
        check=check,
        latency=latency,
        provenance=provenance,
        metrics=ALL_METRICS,
        unrecorded=UNRECORDED,
    )
