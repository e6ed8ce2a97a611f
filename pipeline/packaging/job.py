"""Input and output of the packaging worker: `PackagingJob` and `Package`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.packaging.model_card import CardFacts
from patchline.pipeline.packaging.package_latency import PackageLatency
from patchline.pipeline.workers.worker_process import Worker


class PackagingJob(FrozenModel):
    """A trained model, what is reported about it, and the output folder."""

    model_folder: Path
    manifest_file: Path
    store: Path
    described: dict[str, Any] = Field(default_factory=dict)
    """Fields of the model's description that are known from the report; none for an encoder."""
    reported: Path | None
    """The table of predictions that the report is computed from; None for an encoder, which is
    compared with torch."""
    reference: Path | None = None
    """File with the features that distances are measured to."""
    reference_images: Path | None = None
    """File with what later images are compared with; None for an encoder."""
    folder: Path
    card: CardFacts = CardFacts()
    """Facts for the model card that are not in the model's description."""


class Package(FrozenModel):
    """A package's folder, and how closely it matches what is reported about it."""

    folder: Path
    largest_difference: float
    """Largest difference on all test images: in probability, or in an encoder's features."""
    checked_images: int
    bytes: int
    latency: PackageLatency | None = None
    """How long batches take on this machine; None without an image to measure with."""
    reported_sha256: str = ""
    """SHA-256 of the table of predictions that the package was compared with; empty for an
    encoder."""


PACKAGING = Worker("patchline.pipeline.packaging", PackagingJob, Package, accelerator=False)
