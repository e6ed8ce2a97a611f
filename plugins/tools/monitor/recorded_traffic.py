"""The images that a server has answered, as `patchline serve --record` keeps them.

Shapes: N images, H, W and C of an image, K classes or labels, D features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, Field, ValidationError

from patchline.pipeline.data.near_duplicates.search import ComparedPictures, Progress
from patchline.pipeline.data.reading.decoding import UndecodableImageError
from patchline.pipeline.errors import DataError
from patchline.pipeline.models.reference_images import ReferenceImages
from patchline.pipeline.registry.serving.traffic_recorder import PARTS, check_format, features_of
from patchline.pipeline.registry.version_records import VersionRecords
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.files.json_lines import AppendLog, DamagedLineError
from patchline.pipeline.workspace.files.paths import safe_join
from patchline.plugins.tools.monitor.arrived_images import (
    Computed,
    labels_table,
    since_training,
    size_before,
    without_copies,
)

Array = np.ndarray[Any, Any]
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


class RecordedTraffic:
    """What a version has answered, in a folder of recorded traffic; each image counts once.

    Images that the version was made with are left out, as far as the client has sent the same file:
    the traffic has no pixels to recognise another one by.

    Args:
        records: of the version.
        reference: of the version.
        folder: that the server writes.

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

    def picture(self, position: int) -> Array | None:
        """Return the image as the network takes it, if it was recorded."""
        pixels_HWC = self._pixels(position)
        return None if pixels_HWC is None else np.asarray(pixels_HWC)

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
