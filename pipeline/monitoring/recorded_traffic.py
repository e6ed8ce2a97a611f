"""The images that a server has answered, as `patchline serve --record` keeps them.

Shapes: N images, H, W and C of an image, K classes or labels, D features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.data.reading.decoding import UndecodableImageError
from patchline.pipeline.errors import DataError
from patchline.pipeline.monitoring.arrived_images import (
    Computed,
    Progress,
)
from patchline.pipeline.monitoring.given_labels import labels_table
from patchline.pipeline.registry.version_records import VersionRecords
from patchline.pipeline.serving.traffic_recorder import PARTS, features_of, rows_of
from patchline.pipeline.terminal_words import counted

Array = np.ndarray[Any, Any]


class RecordedTraffic:
    """What a version has answered, in a folder of recorded traffic.

    Whether the version was trained on some of these images is not known; a server's clients rarely
    send those.

    Args:
        records: of the version.
        folder: that the server writes.

    Raises:
        DataError: if the version has answered nothing in it.
    """

    def __init__(self, records: VersionRecords, folder: Path) -> None:
        self._package, self._folder = records.package, folder
        own, others = [], Counter[str]()
        classes = len(self._package.classes)
        for part in sorted(folder.glob(PARTS)):
            for row in rows_of(part):
                by = f"{row.get('model')}/{row.get('version')}"
                if by == records.label and len(row.get("probabilities") or ()) == classes:
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
        self._rows = own
        table = labels_table(folder)
        self.keys = tuple(str(row["id"]) for row in own)
        self.names = tuple(str(row.get("image") or f"request of {row.get('time')}") for row in own)
        self.labels = tuple(table.by_path.get(str(row.get("image"))) for row in own)
        self.labels_problem = table.problem
        self.notes = tuple(notes)

    def computed(self, chosen: Sequence[int], on_progress: Progress) -> Computed:
        """Return what the server has recorded; nothing is computed again."""
        rows = [self._rows[position] for position in chosen]
        on_progress("Reading recorded traffic", len(rows), len(rows))
        features = [features_of(row) for row in rows]
        known = [each for each in features if each is not None]
        whole = len(known) == len(rows) and len({each.shape for each in known}) == 1
        return Computed(
            np.arange(len(rows)),
            np.array([row["probabilities"] for row in rows], np.float32),
            np.stack(known) if whole else None,
        )

    def picture(self, position: int) -> Array | None:
        """Return the image as the network takes it, if it was recorded."""
        image = self._rows[position].get("image")
        if not image:
            return None
        try:
            return np.asarray(self._package.pixels((self._folder / str(image)).read_bytes()))
        except (UndecodableImageError, OSError):
            return None
