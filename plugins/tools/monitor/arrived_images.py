"""The images of a stream: those of a folder, an archive, a table, or the traffic of a server.

Shapes: N images, M reference images, H, W and C of an image, K classes or labels, D features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from unicodedata import normalize

import numpy as np
import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.labels.answer_columns import NEAR
from patchline.pipeline.data.labels.answers.answers_table import table_labels
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL
from patchline.pipeline.data.labels.reading_rules import AUTO
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests import scanning
from patchline.pipeline.data.manifests.scanning import ScanMemory
from patchline.pipeline.data.manifests.source_listing import listing_of
from patchline.pipeline.data.near_duplicates.search import (
    LEAST_SIDE,
    ComparedPictures,
    Progress,
    groups_alone,
    one_of_each,
)
from patchline.pipeline.data.reading.decoding import UndecodableImageError
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.value_ranges.data_values import with_unfit_damaged
from patchline.pipeline.errors import DataError
from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry.serving.traffic_recorder import PARTS, check_format, features_of
from patchline.pipeline.registry.version_records import VersionRecords
from patchline.pipeline.templates import render_markdown
from patchline.pipeline.terminal_words import by_number, counted, visible
from patchline.pipeline.workspace.files.json_lines import AppendLog, DamagedLineError
from patchline.pipeline.workspace.files.paths import safe_join

LABELS_TABLE = "labels.csv"
"""In a folder of images: columns path and label, as `patchline label` writes them."""
LABEL_TABLES = r"labels(\.edited-[\d-]+)?\.csv"
"""It and those that `patchline label` keeps beside it."""
Labels = tuple[str, ...]
"""Of an image: its class, or any number of labels."""


class LabelsTable(NamedTuple):
    """The labels of a table."""

    by_path: dict[str, Labels]
    """The labels of each image: for a table in a folder, by the path in it; for a data source, by
    the place of the image."""
    problem: str = ""
    """Why there are none; empty if the table can be read, or there is none."""


def labels_table(folder: Path) -> LabelsTable:
    """Return what the table of a folder says, if there is one."""
    file = folder / LABELS_TABLE
    if not file.is_file():
        return LabelsTable({})
    try:
        return LabelsTable(table_labels(file))
    except DataError:
        return LabelsTable(
            {}, f"{file.name} cannot be read as a table with the columns path and label; repair it"
        )


def with_task_of(package: PackagedModel, config: RunConfig) -> RunConfig:
    """Return the settings of a data source, whose labels are read as those of a model."""
    data, task = config.data, MULTI_LABEL if package.is_multi_label else SINGLE_LABEL
    if data.task != AUTO:
        return config
    return config.model_copy(update={"data": data.model_copy(update={"task": task})})


def read_listed_labels(config: RunConfig, workspace: Path) -> LabelsTable:
    """Return the labels that a data source lists.

    Args:
        config: its section `data` names the source.
        workspace: the folder `.patchline`.
    """
    try:
        listing = listing_of(config, workspace, labelled=True)
    except DataError as error:
        return LabelsTable({}, str(error).rstrip("."))
    by_place: dict[str, Labels] = {}
    for image in listing.images:
        labels = (image.label,) if image.labels is None else image.labels
        by_place[place_of(listing.root, image.path)] = labels
    return LabelsTable(by_place)


def place_of(root: Path, path: str) -> str:
    """Return where an image is: two listings of a source may have different roots."""
    return f"{root}/{path}"


Array = np.ndarray[Any, Any]
_FOLDERS = ("image_folder", "archive")
_BATCH = 64
_NAMED = 3


@dataclass(frozen=True)
class Computed:
    """What a version computes for some images.

    Attributes:
        positions: positions of the images that could be read, among those that were asked for.
        probabilities_NK: probabilities of these images (N, K).
        features_ND: features of these images (N, D); None if they are not known.
        pictures: pictures of these images by key, as far as they are there.
    """

    positions: Array
    probabilities_NK: Array
    features_ND: Array | None
    pictures: ComparedPictures

    def of(self, places: Array) -> Computed:
        """Return what is computed for some of these images."""
        features_ND = None if self.features_ND is None else self.features_ND[places]
        return replace(
            self,
            positions=self.positions[places],
            probabilities_NK=self.probabilities_NK[places],
            features_ND=features_ND,
        )


class ArrivedImages(ABC):
    """The images of a stream, before anything is computed.

    Attributes:
        keys: the key of each image, which identifies it now and at the next check.
        names: the name of each image, for people.
        groups: the group of each image, such as its patient; empty where there is none.
        labels: the labels of each image, whether the model has them or not; None where they are not
            known.
        labels_problem: why the table of labels gives none; empty if it can be read.
        notes: what a person should know, such as images that are left out.
    """

    keys: tuple[str, ...]
    names: tuple[str, ...]
    groups: tuple[str, ...]
    labels: tuple[Labels | None, ...]
    labels_problem: str
    notes: tuple[str, ...]

    @abstractmethod
    def computed(self, chosen: Sequence[int], on_progress: Progress) -> Computed:
        """Return what the version computes for some of them."""

    @abstractmethod
    def _pixels(self, position: int) -> Array | None:
        """Return an image as the network takes it; None if it is not there."""

    def picture(self, position: int) -> Array | None:
        """Return an image, uint8 (H, W, C), as the network takes it; None if it is not there."""
        pixels_HWC = self._pixels(position)
        return None if pixels_HWC is None else np.asarray(pixels_HWC)


class ImageFiles(ArrivedImages):
    """Images that a data source lists; those that the version was made with are left out.

    Args:
        records: the version's records.
        reference: the version's reference images.
        config: its section `data` names the source.
        workspace: the folder `.patchline`.
        on_progress: called while the files are read.

    Raises:
        DataError: if the source cannot be read, or no image is left.
    """

    def __init__(
        self,
        records: VersionRecords,
        reference: ReferenceImages,
        config: RunConfig,
        workspace: Path,
        on_progress: Progress,
    ) -> None:
        self._package = records.package
        config = with_task_of(self._package, config)
        listing = listing_of(config, workspace, labelled=False)
        self._root = listing.root

        def reading(done: int, total: int) -> None:
            on_progress("Reading images", done, total)

        memory = ScanMemory(listing.root, workspace)
        manifest = scanning.scan(listing, reading, labelled=False, memory=memory)
        manifest = with_unfit_damaged(manifest, self._package.mapping)
        notes = []
        is_other = manifest["path"].str.fullmatch(LABEL_TABLES)
        unusable = int(((manifest["status"] != "ok") & ~is_other).sum())
        if unusable:
            notes.append(f"{counted(unusable, 'file')} left out: no image, or damaged")
        rows = manifests.usable(manifest)
        rows = without_copies(rows, notes)
        rows = since_training(rows, records, reference, notes)
        if rows.empty:
            why = "; ".join(notes) or "it is empty"
            raise DataError(
                f"No image of {listing.root} is left to compare ({why}). Give a folder with images "
                "that have arrived since the model was trained."
            )
        self.keys = tuple(rows["sha256"])
        self.names = tuple(rows["path"])
        self.groups = tuple(rows["group"].fillna("").astype(str))
        if config.data.source in _FOLDERS:
            self._take_folder_labels(notes)
        else:
            table = read_listed_labels(config, workspace)
            self.labels = tuple(
                table.by_path.get(place_of(self._root, path)) for path in self.names
            )
            self.labels_problem = table.problem
        self.notes = tuple(notes)

    def _take_folder_labels(self, notes: list[str]) -> None:
        """Take an image's label from a table in the folder, or from the name of a folder around it.

        If the table cannot be read, what it corrects is not known, so no image has a label.
        """
        table = labels_table(self._root) if self._root.is_dir() else LabelsTable({})
        named: Counter[str] = Counter()
        labels: list[Labels | None] = []
        classes = {normalize("NFC", name): name for name in self._package.classes}
        for path in self.names:
            given = table.by_path.get(path)
            if given is None and not table.problem and not self._package.is_multi_label:
                folders = [normalize("NFC", part) for part in Path(path).parts[:-1]]
                around = [classes[part] for part in folders if part in classes]
                named.update(around[-1:])
                given = tuple(around[-1:]) or None
            labels.append(given)
        if named:
            examples = ", ".join(f"'{visible(name)}'" for name, _ in named.most_common(_NAMED))
            notes.append(
                f"{counted(named.total(), 'label')} taken from the names of folders ({examples})"
            )
        self.labels, self.labels_problem = tuple(labels), table.problem

    def computed(self, chosen: Sequence[int], on_progress: Progress) -> Computed:
        """Decode and predict images."""
        positions: list[int] = []
        probabilities: list[Array] = []
        features: list[Array] = []
        pictures = ComparedPictures()
        for start in range(0, len(chosen), _BATCH):
            batch, pixels = chosen[start : start + _BATCH], []
            for place, position in enumerate(batch, start=start):
                pixels_HWC = self._pixels(position)
                if pixels_HWC is not None:
                    positions.append(place)
                    pixels.append(pixels_HWC)
                    pictures.add(self.keys[position], pixels_HWC, size_before(pixels_HWC))
            if pixels:
                outputs = predict_images(self._package, np.stack(pixels))
                probabilities.append(outputs[0])
                features += outputs[1:]
            on_progress("Predicting", start + len(batch), len(chosen))
        classes = len(self._package.classes)
        return Computed(
            np.array(positions, np.int64),
            np.concatenate(probabilities) if probabilities else np.zeros((0, classes), np.float32),
            np.concatenate(features) if features else None,
            pictures,
        )

    def _pixels(self, position: int) -> Array | None:
        try:
            with root_image_bytes(self._root, self.names[position]) as data:
                return self._package.pixels(data, paths=False)
        except (UndecodableImageError, OSError):
            return None  # changed or removed since the files were read


def size_before(pixels_HWC: Array) -> tuple[int, int]:
    """Return the height and the width that an image had before it was resized."""
    original: tuple[int, int] | None = getattr(pixels_HWC, "original", None)
    return original or (pixels_HWC.shape[0], pixels_HWC.shape[1])


def predict_images(package: PackagedModel, pixels_BHWC: Array) -> list[Array]:
    """Return the probabilities of images, and their features if the package has that output."""
    names = [package.output_names[0]]
    if "features" in package.output_names:
        names.append("features")
    return package.named_outputs(pixels_BHWC, names)


def without_copies(rows: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return each file once: copies would count as evidence of their own."""
    is_copy = rows["sha256"].duplicated()
    copies = int(is_copy.sum())
    if copies:
        notes.append(f"{counted(copies, 'exact copy', 'exact copies')} left out")
    return rows[~is_copy]


def since_training(
    rows: pd.DataFrame, records: VersionRecords, reference: ReferenceImages, notes: list[str]
) -> pd.DataFrame:
    """Return the images that had no part in the training and the test of a version.

    Args:
        rows: rows of a manifest; columns sha256 and group, and pixels where they are known.
        records: the version's records.
        reference: the version's reference images.
        notes: receives how many are left out, and why.
    """
    if not records.is_recorded:
        notes.append(
            f"whether {records.label} was trained on some of these images is not known, because "
            "its training data is no longer recorded"
        )
    is_seen = records.has_seen(rows)  # the model is more certain about those
    them = by_number(is_seen.sum(), "it", "them")
    why = f"the model used {them} for training or model selection"
    rows = _without(rows, is_seen, why, notes)
    # Those of the reference would be in both samples, and the accuracy on test images is that of
    # the test, whatever arrives.
    is_own = records.has_tested(rows) | rows["sha256"].isin(reference.sha256)
    them = by_number(is_own.sum(), "it", "them")
    return _without(rows, is_own, f"{records.label} was validated or tested on {them}", notes)


def _without(
    rows: pd.DataFrame, is_left_out: pd.Series[bool], why: str, notes: list[str]
) -> pd.DataFrame:
    """Return the other rows, and note how many are left out."""
    count = int(is_left_out.sum())
    if count:
        notes.append(f"{counted(count, 'image')} left out, because {why}")
    return rows[~is_left_out]


class Independence(NamedTuple):
    """What the tests of a check may count as evidence of its own."""

    places: Array
    """Positions of one new image of each unit, in ascending order."""
    unknown: tuple[str, ...]
    """What is not known about it; with any, false alarms may be more frequent than stated."""


def independent_reference(reference: ReferenceImages) -> ReferenceImages:
    """Return one reference image of each unit; all of them if these are not known."""
    if reference.units_M is None:
        return reference
    return reference.of(one_of_each(reference.units_M, reference.sha256))


def independent_images(
    keys: Sequence[str],
    groups: Sequence[str],
    pictures: ComparedPictures,
    records: VersionRecords,
    reference: ReferenceImages,
    on_progress: Progress,
) -> Independence:
    """Return one new image of each unit: of near duplicates, and of the images of a group.

    Args:
        keys: the key of each image.
        groups: the group of each image; empty where there is none.
        pictures: pictures of the images by key, as far as they are there.
        records: the version's records.
        reference: the version's reference images.
        on_progress: called while the images are compared.
    """
    if reference.are_alike:
        units_N = groups_alone(groups)
    else:
        units_N = pictures.units(keys, groups, on_progress)
    compared = not reference.are_alike
    unknown = render_markdown(
        "not_independent.md.j2",
        __package__,
        lacking=pictures.lacking(keys) if compared else 0,
        small=pictures.too_small(keys) if compared else 0,
        least_side=LEAST_SIDE,
        reference=reference,
        groups_unknown=_are_grouped(records) and not any(groups),
    )
    return Independence(one_of_each(units_N, keys), tuple(unknown.splitlines()))


def _are_grouped(records: VersionRecords) -> bool:
    """Return whether images of the training data come in groups that the source gives."""
    if records.manifest is None:
        return False
    groups = records.manifest["group"].fillna("").astype(str)
    return bool(((groups != "") & ~groups.str.startswith(NEAR)).any())


_PROGRESS = 64


class _RecordedAnswer(BaseModel):
    """A line of a part; see `traffic_recorder`."""

    id: str
    time: str
    model: str
    version: str
    probabilities: list[Annotated[float, Field(ge=0, le=1)]]
    features: str | None = None
    digest: str | None = None
    """None if an earlier Patchline has recorded it."""
    image: str | None = None


class RecordedTraffic(ArrivedImages):
    """What a version has answered, in a folder of recorded traffic; each image counts once.

    Images that the version was made with are left out, as far as the client has sent the same file:
    the traffic has no pixels to recognise another one by.

    Args:
        records: the version's records.
        reference: the version's reference images.
        folder: the folder in which the server records its traffic.

    Raises:
        DataError: if the version has answered nothing in it, no image is left, or it is damaged.
        ConfigError: if a later Patchline has recorded it.
    """

    def __init__(self, records: VersionRecords, reference: ReferenceImages, folder: Path) -> None:
        self._package, self._folder = records.package, folder
        check_format(folder)
        own, others = [], Counter[str]()
        classes = len(self._package.classes)
        for part in sorted(folder.glob(PARTS)):
            for row in _rows(part):
                by = f"{row['model']}/{row['version']}"
                if by == records.label and len(row["probabilities"]) == classes:
                    own.append(row)
                else:
                    others[by] += 1
        notes = [
            f"{counted(count, 'image')} of {label} left out: another version answered"
            for label, count in sorted(others.items())
        ]
        if not own:
            raise DataError(
                f"The recorded traffic in {folder} holds no answer of {records.label} "
                f"({'; '.join(notes) or 'it is empty'}). Serve that version with --record, or name "
                "the version that answered."
            )
        keys = [_key(row) for row in own]
        table = labels_table(folder)
        labels = {  # somebody may have labelled another copy than the first
            key: table.by_path[str(row.get("image"))]
            for key, row in zip(keys, own, strict=True)
            if str(row.get("image")) in table.by_path
        }
        unknown = sum("digest" not in row for row in own)
        if unknown:
            notes.append(
                f"whether copies of each other are among {counted(unknown, 'image')} is not known, "
                "because an earlier Patchline has recorded them"
            )
        rows = without_copies(pd.DataFrame({"sha256": keys, "group": ""}), notes)
        rows = since_training(rows, records, reference, notes)
        if rows.empty:
            raise DataError(
                f"No image in the recorded traffic in {folder} is left to compare "
                f"({'; '.join(notes)}). Wait for other images."
            )
        self._rows = [own[place] for place in rows.index]
        self.keys = tuple(rows["sha256"])
        self.names = tuple(
            str(row.get("image") or f"request of {row.get('time')}") for row in self._rows
        )
        self.groups = ("",) * len(self._rows)
        self.labels = tuple(labels.get(key) for key in self.keys)
        self.labels_problem = table.problem
        self.notes = tuple(notes)

    def computed(self, chosen: Sequence[int], on_progress: Progress) -> Computed:
        """Return what the server has recorded; nothing is predicted again."""
        rows = [self._rows[position] for position in chosen]
        pictures = ComparedPictures()
        for done, position in enumerate(chosen, start=1):
            pixels_HWC = self._pixels(position)
            if pixels_HWC is not None:
                pictures.add(self.keys[position], pixels_HWC, size_before(pixels_HWC))
            if done % _PROGRESS == 0 or done == len(rows):
                on_progress("Reading recorded traffic", done, len(rows))
        features = [features_of(row) for row in rows]
        known = [each for each in features if each is not None]
        whole = len(known) == len(rows) and len({each.shape for each in known}) == 1
        return Computed(
            np.arange(len(rows)),
            np.array([row["probabilities"] for row in rows], np.float32),
            np.stack(known) if whole else None,
            pictures,
        )

    def _pixels(self, position: int) -> Array | None:
        image = self._rows[position].get("image")
        if not image:
            return None
        try:
            file = safe_join(self._folder, str(image), f"The recorded traffic in {self._folder}")
            return self._package.pixels(file.read_bytes(), paths=False)
        except (UndecodableImageError, OSError):
            return None


def _rows(part: Path) -> list[dict[str, Any]]:
    """Return the lines of a part, without the rest of one that a killed server has left at its end.

    Raises:
        DataError: if it is damaged.
    """
    try:
        return AppendLog(part).objects(_check)
    except (DamagedLineError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"The recorded traffic {part} is damaged: {reason}. Restore the file from a backup, or "
            "move it out of the folder to do without what it holds."
        ) from error


def _check(row: dict[str, Any], number: int) -> None:
    try:
        _RecordedAnswer.model_validate(row)
        features_of(row)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise DamagedLineError(f"line {number}, {field}: {first['msg'].lower()}") from error
    except ValueError as error:
        raise DamagedLineError(f"line {number}, features: {error}") from error


def _key(row: dict[str, Any]) -> str:
    """Return what identifies an image: its digest, or its line if that has none."""
    return str(row.get("digest") or row["id"])
