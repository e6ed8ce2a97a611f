"""What the first two stages of a run say about the data: the manifest, and the prepared store."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, Task, by_task
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.symmetry.assumed_symmetries import MirrorSymmetry
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.provenance import KNOWN, ProvenanceSummary
from patchline.pipeline.terminal_words import few_names
from patchline.plugin_api import ImageSpec, PixelValues


class SeenBefore(FrozenModel):
    """What the initial weights of a run, or its teacher, have seen of its images."""

    counts: dict[str, int] = Field(default_factory=dict)
    """Number of validation and test images that they are recorded to have seen; without zeros."""
    related: int = 0
    """Number of further test images in groups of which they have seen other images."""
    provenance: ProvenanceSummary = KNOWN
    """Whether all images that they have seen are recorded; random weights have seen none."""
    weights: str = "the initial weights"
    """The name of these weights, for sentences."""
    trained: int = 0
    """Number of training images that they are recorded to have been trained on."""


UNLABELLED = "unlabelled"
"""The split of images that are trained on without labels."""


class UnlabelledImages(FrozenModel):
    """Images to train on that have no labels, in a manifest of their own."""

    manifest_file: Path
    """All usable rows are in the split `unlabelled`."""
    fingerprint: str
    root: Path
    """The folder or archive that the manifest's paths are relative to."""
    count: int
    """Usable images."""
    left_out: dict[str, int] = Field(default_factory=dict)
    """Number of images that were left out for each reason, such as `copies of test images`."""


class IngestedData(FrozenModel):
    """A manifest on disk and its statistics."""

    name: str
    """The source's name of the data."""
    manifest_file: Path
    fingerprint: str
    root: Path
    """The folder or archive that the manifest's paths are relative to."""
    classes: tuple[str, ...]
    """Empty if the objective uses no labels."""
    counts: dict[str, int]
    """Usable images by split; `unlabelled` only if there are some."""
    class_counts: dict[str, int]
    """Usable images by class, or of multi-label data those with each label."""
    task: Task = SINGLE_LABEL
    """Whether an image has one class, or a set of them."""
    median_side: int
    """Median of the images' shorter sides, in pixels."""
    greyscale: bool
    pixel_values: PixelValues = PixelValues()
    """What becomes of pixel values and bands that are not 8 bits of grey or RGB."""
    mirror: MirrorSymmetry
    """Whether a mirrored image still shows its class, and how that is known."""
    example_image: str
    """A test image, to try the model on."""
    notes: tuple[str, ...]
    """What a person should know: files left out, small splits, leakage."""
    split_origin: str = ""
    """The origin of the splits, such as `test and validation split off from train`."""
    exclude: Path | None = None
    """A copy of the table of excluded files, named by its content."""
    repeats: str | None = None
    """The run or the file whose manifest is used again, if any."""
    seen_before: SeenBefore = SeenBefore()
    """What the initial weights have seen of it; see `provenance`."""
    taught_by: str = ""
    """The teacher of the run and what it has predicted, in words; empty without a teacher."""
    unlabelled: UnlabelledImages | None = None
    """Further images to train on; `counts` has their number, and `fingerprint` is without them."""

    @property
    def training_images(self) -> int:
        """Images of an epoch, labelled or not."""
        return self.counts["train"] + self.counts.get(UNLABELLED, 0)

    @property
    def mapping(self) -> PixelMapping:
        """The pixel values for the decoder."""
        return PixelMapping.of(self.pixel_values.model_dump())

    def findings(self) -> list[str]:
        """Return how many images there are and how they are split, then what is unusual."""
        total = sum(self.counts.values())
        parts = ", ".join(f"{count:,} {split}" for split, count in self.counts.items())
        classes = "without labels"
        if self.classes:
            number = f"{len(self.classes):,}"
            is_multi = self.task == MULTI_LABEL
            classes = f"with sets of {number} labels" if is_multi else f"in {number} classes"
        counted = f"{total:,} images {classes}: {parts}"
        return [f"{counted} ({self.split_origin})", *self._class_list(), *self.notes]

    def _class_list(self) -> list[str]:
        """Return the names of the classes with their numbers of images, in a line."""
        if not self.classes:
            return []
        named = few_names((f"{name} ({self.class_counts[name]:,})" for name in self.classes), 20)
        return [f"{by_task(self.task).several}: {named}"]


class PreparedData(FrozenModel):
    """A prepared store on disk and the format of its images."""

    store: Path
    reused: bool
    image: ImageSpec
    unlabelled: Path | None = None
    """The store of the unlabelled images, in the same format."""
