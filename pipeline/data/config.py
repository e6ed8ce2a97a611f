"""Settings of the data: source, image size and splits."""

from __future__ import annotations

import importlib
import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from patchline.pipeline.data.labels.reading_rules import ReadingRules
from patchline.pipeline.errors import DataError
from patchline.pipeline.frozen_model import DocumentedModel
from patchline.pipeline.workspace.files.data_kinds import DataKind, find_kind

_SOURCES: dict[DataKind, str] = {
    "folder": "image_folder",
    "archive": "archive",
    "table": "table",
    "shards": "webdataset",
    "coco": "coco",
    "label_studio": "label_studio",
}
SHORT_OPTIONS = (
    *("image_column", "label_column", "split_column", "group_column", "image_folder", "download"),
)
"""Settings of a source that may stand beside `data.path` instead of below `data.options`."""
Fraction = Annotated[float, Field(gt=0, lt=0.9)]
Mean = Annotated[float, Field(ge=0, le=1)]
Deviation = Annotated[float, Field(gt=0, le=1)]
Band = Annotated[int, Field(ge=1, le=4096)]
_ONE_OR_THREE = (1, 3)

OWN_COLUMN = "column:"
"""Start of the names of the manifest's columns that the data source adds."""
GROUP_NAME = "group"
"""Name of the part that a group pattern captures, if it captures several."""


def _captures_a_group(text: str) -> str:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"that is not a regular expression ({error})") from error
    if pattern.groups != 1 and GROUP_NAME not in pattern.groupindex:
        raise ValueError(
            f"it captures {pattern.groups} parts; put the part of the path that names the group in "
            r"parentheses, such as (patient\d+)_, or name it, such as (?P<group>patient\d+)"
        )
    return text


def _range_of_values(given: tuple[float | str, float | str]) -> tuple[float | str, float | str]:
    """Return two values as numbers, and two percentiles such as 1% and 99% as they are."""
    text = [str(each) for each in given]
    percentiles = [each for each in text if each.endswith("%")]
    try:
        low, high = (float(each.removesuffix("%")) for each in text)
    except ValueError:
        low = high = math.nan
    if len(percentiles) == 1 or not math.isfinite(high - low):
        raise ValueError("give two values, such as 0 4095, or two percentiles, such as 1% 99%")
    if not low < high:
        raise ValueError("the first value must be smaller than the second")
    if not percentiles:
        return low, high
    if low < 0 or high > 100:  # noqa: PLR2004 - percent
        raise ValueError("percentiles are from 0% to 100%")
    return text[0], text[1]


def percentiles_in(
    value_range: tuple[float | str, float | str] | None,
) -> tuple[float, float] | None:
    """Return the two percentiles that a checked `data.value_range` has; None if it has values."""
    texts = [each.removesuffix("%") for each in value_range or () if isinstance(each, str)]
    return (float(texts[0]), float(texts[1])) if texts else None


def _one_or_three(bands: tuple[int, ...]) -> tuple[int, ...]:
    if len(bands) not in _ONE_OR_THREE:
        raise ValueError(
            f"it names {len(bands)} bands; give one, or three that become red, green and blue"
        )
    return bands


class TaskChoice(DocumentedModel):
    """How many labels an image has."""

    task: Literal["auto", "single_label", "multi_label"] = "auto"
    """What the model learns: single_label, one class for each image; multi_label, a set of classes,
    possibly none; or auto, which is multi_label if the source lists sets of labels."""


class TableColumns(TaskChoice, ReadingRules):
    """Which columns of a table are read, and how labels are."""

    image_column: str | None = None
    """Column with the images, or with their paths or names; by default guessed."""

    label_column: str | None = None
    """Column with the labels; by default guessed."""

    split_column: str | None = None
    """Column with train, validation or test, or of 0 and 1, such as is_test; none ignores all
    splits; by default a column with names of splits."""

    group_column: str | None = None
    """Column whose equal values stay in one split, such as a patient; none if there is none; by
    default a question where a column seems to be one."""

    image_folder: str | None = None
    """Folder that relative paths start from; by default the table's folder."""


class DataLocation(DocumentedModel):
    """Where images come from."""

    source: str = "digits"
    """Name of the data source plugin; if only a path is given, the one that reads it, such as
    image_folder, archive, table or coco."""

    path: str | None = None
    """Path that the data source reads: a folder, an archive, a table or shards, also on an object
    store, such as s3://bucket/photos."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the data source plugin."""


class DataConfig(TaskChoice, ReadingRules, DataLocation):
    """Where images come from, how they are labelled, what size they get, how they are split."""

    image_size: Annotated[int, Field(ge=4, le=1024)] | None = None
    """Height and width in pixels after resizing; by default derived from the images."""

    channels: Literal[1, 3] | None = None
    """1 for greyscale, 3 for RGB; by default greyscale only if every image is."""

    value_range: (
        Annotated[tuple[float | str, float | str], AfterValidator(_range_of_values)] | None
    ) = None
    """Pixel values that become black and white in images of more than 8 bits: two values, such as
    0 4095 or, in Hounsfield units, -160 240; or two percentiles of all pixels, such as 1% 99%. By
    default found from the files."""

    bands: Annotated[tuple[Band, ...], AfterValidator(_one_or_three)] | None = None
    """Bands that are used, counted from 1: three that become red, green and blue, such as 4 3 2, or
    one; needed for images whose format does not say what their bands are."""

    resize: Literal["crop", "squash", "pad"] = "crop"
    """How to make an image square: crop keeps the centre; squash keeps all, but distorts it; pad
    keeps all and adds a border in its mean colour."""

    store: Literal["auto", "decoded", "packed"] = "auto"
    """How images are stored for training: decoded; packed, as files that take less space and are
    decoded on every use; or auto, which packs them only if they would not fit on the disk decoded.
    The result does not depend on it."""

    mean: tuple[Mean, ...] | None = None
    """Mean of the pixels of each channel, from 0 to 1, for normalization; by default that of the
    training split, or of the initial weights' own training."""

    std: tuple[Deviation, ...] | None = None
    """Standard deviation of the pixels of each channel, from 0 to 1; by default as for the mean."""

    validation_fraction: Fraction = 0.15
    """Fraction of the images for validation, which selects the best weights; unused if the data has
    a validation split."""

    test_fraction: Fraction = 0.15
    """Fraction of the images for the test, which the final metrics are of; unused if the data has a
    test split."""

    split_seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the split; independent of the training seed."""

    group_pattern: Annotated[str, AfterValidator(_captures_a_group)] | None = None
    """Regular expression with a part in parentheses; images in whose paths it captures the same
    text, such as a patient, are never in different splits."""

    group_near_duplicates: bool = False
    """Keep near-duplicate images (crops, mirror images, rescaled or re-encoded copies) in one
    split; they are searched for when the data is read."""

    mirror_symmetric: bool | None = None
    """Whether a mirrored image still shows its class; false for text or left-right views. By
    default as the data source declares, else measured on the training split; what is not known is
    not used."""

    workers: Annotated[int, Field(ge=0, le=64)] = 0
    """Number of data-loader workers; the result does not depend on it."""

    accept: tuple[Literal["leakage", "changes"], ...] = ()
    """Problems of the data that do not stop the run: leakage, images in several splits; changes,
    images of data.manifest that are missing or have changed, which are left out."""

    manifest: str | None = None
    """Reuse the images, labels and splits of an earlier run: last, a run's id or name, a model
    version such as flowers@champion, or a manifest file; images that are missing or have changed
    stop the run, unless data.accept has changes."""

    unlabelled: str | None = None
    """Folder, archive, table or shards of further images to train on, without labels: a teacher
    (training.teacher) labels them, or the objective needs no labels. They are never used for
    validation or test; copies of images of these splits are left out."""

    exclude: str | None = None
    """CSV table of files to leave out, such as the edited findings of patchline data inspect."""

    @model_validator(mode="before")
    @classmethod
    def _a_path_is_read(cls, given: Any) -> Any:
        """Read what the path names, not the built-in digits, if only a path is given."""
        if not isinstance(given, dict):
            return given
        if given.get("path") and "source" not in given:
            given = {**given, "source": source_of(str(given["path"]))}
        short = {key: given[key] for key in SHORT_OPTIONS if given.get(key) is not None}
        if not short:
            return given
        rest = {key: value for key, value in given.items() if key not in SHORT_OPTIONS}
        options = given.get("options") or {}
        stronger = {key: value for key, value in options.items() if value is not None}
        return {**rest, "options": {**options, **short, **stronger}}


def source_of(path: str) -> str:
    """Return the name of the data source that reads a path, or an address on an object store.

    Raises:
        DataError: if the path cannot be read, so that what it holds is not known.
    """
    # by name: what is trained names its source, and its code depends on no object store
    remote_data = importlib.import_module("patchline.pipeline.workspace.remote_data")
    kind: DataKind = remote_data.kind(path)
    if kind == "unknown":
        raise DataError(find_kind(path).reason or f"{path} cannot be read. Check the path.")
    return _SOURCES[kind]
