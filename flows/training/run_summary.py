"""What a training leaves behind, as `patchline run --json` prints it."""

from __future__ import annotations

from pydantic import Field

from pipeline.metrics.intervals import MetricEstimate
from pipeline.registry.promotion import Promotion
from pipeline.section import Section


class RunSummary(Section):
    """What a run leaves behind; `patchline run --json` prints it."""

    run_id: str
    name: str
    version: str
    aliases: tuple[str, ...]
    status: str
    seconds: dict[str, float]
    """By stage."""
    metrics: dict[str, MetricEstimate]
    report: str
    """Path of the HTML report."""
    tracking_uri: str
    config: str
    """Path of the resolved config."""
    data_fingerprint: str
    example_image: str
    """A test image, to try the model on."""
    notes: tuple[str, ...]
    promotion: Promotion | None
    """What was decided about the champion; none if a person has to decide."""
    approval: str = ""
    """What a person was asked, or why nobody could be; empty unless the config wants it."""
    reused: dict[str, str] = Field(default_factory=dict)
    """By stage that was not computed again, the run whose result was used."""
