"""Settings of the data: where it comes from and how it is split."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.section import Section

Fraction = Annotated[float, Field(gt=0, lt=0.9)]


class DataConfig(Section):
    """Where images come from, what size they get, and how they are split."""

    source: str = "digits"
    """Name of the data source plugin; with a path and no name, image_folder."""

    path: str | None = None
    """What the data source reads: for image_folder, the folder."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the data source plugin itself."""

    image_size: Annotated[int, Field(ge=4, le=1024)] | None = None
    """Height and width in pixels after resizing; by default chosen from the images."""

    channels: Literal[1, 3] | None = None
    """1 for greyscale, 3 for RGB; by default greyscale only if every image is."""

    resize: Literal["crop", "squash"] = "crop"
    """How an image that is not square becomes so: cut at the centre, or squeezed."""

    validation_fraction: Fraction = 0.15
    """Share of the images held back to choose the weights, unless the source has this split."""

    test_fraction: Fraction = 0.15
    """Share of the images held back for the final figures, unless the source has this split."""

    split_seed: Annotated[int, Field(ge=0)] = 0
    """Chooses another split of the same images; independent of the seed of training."""

    workers: Annotated[int, Field(ge=0, le=64)] = 0
    """Processes that augment images beside the training; the result does not depend on it."""

    min_new_images: Annotated[int, Field(ge=1)] = 1
    """Images that have to be new before a watched folder is trained on again."""

    @model_validator(mode="before")
    @classmethod
    def _a_path_is_read(cls, given: Any) -> Any:
        """Never train on the built-in digits because somebody named only the folder."""
        if isinstance(given, dict) and given.get("path") and "source" not in given:
            return {**given, "source": "image_folder"}
        return given
