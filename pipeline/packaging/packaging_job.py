"""What the packaging process is given, and what it gives back."""

from __future__ import annotations

from pathlib import Path

from pipeline.packaging.model_card import CardFacts
from pipeline.section import Section


class PackagingJob(Section):
    """A trained model, the images to check it on, and where the package goes."""

    model_folder: Path
    manifest_file: Path
    store: Path
    temperature: float
    folder: Path
    card: CardFacts = CardFacts()
    """What the model card tells beyond the model's description."""


class Package(Section):
    """The files of a package and how close it is to the trained model."""

    folder: Path
    largest_difference: float
    checked_images: int
    bytes: int
