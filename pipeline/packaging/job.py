"""Input and output of the packaging worker: `PackagingJob` and `Package`."""

from __future__ import annotations

from pathlib import Path

from pipeline.packaging.model_card import CardFacts
from pipeline.section import Section


class PackagingJob(Section):
    """A trained model, the images to check it with, and the output folder."""

    model_folder: Path
    manifest_file: Path
    store: Path
    temperature: float
    folder: Path
    card: CardFacts = CardFacts()
    """Facts for the model card that are not in the model's description."""


class Package(Section):
    """A package's folder, and how closely it matches the trained model."""

    folder: Path
    largest_difference: float
    checked_images: int
    bytes: int
