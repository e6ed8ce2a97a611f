"""What a network has computed for images, kept by the digest of their files.

A folder belongs to one network. Each file in it, `NAME.npz`, holds the results of some images, so
that images which are added, renamed or moved do not make those of the others worthless.

Shapes: B images of a batch.
"""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from patchline.pipeline.errors import PipelineError
from patchline.pipeline.workspace.files.atomic_files import replacing, storage_errors
from patchline.pipeline.workspace.files.workspace_folder import make_folder

logger = logging.getLogger(__name__)
Array = np.ndarray[Any, Any]
_DIGESTS = "digests"


class KeptFeatures:
    """The results of one network.

    Args:
        folder: of the network; made with the first result.
        names: of the results of an image.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._folder, self._names = folder, tuple(names)
        self._results: dict[str, tuple[Array, ...]] = {}
        for file in sorted(folder.glob("*.npz")):
            self._read(file)

    def __contains__(self, digest: str) -> bool:
        """Return whether there are results for a file of this digest."""
        return digest in self._results

    def of(self, digests: Sequence[str]) -> list[Array]:
        """Return each result for some images (B, …), all of which have results."""
        rows = [self._results[digest] for digest in digests]
        return [np.stack([row[place] for row in rows]) for place in range(len(self._names))]

    def add(self, digests: Sequence[str], results: Sequence[Array]) -> None:
        """Keep results; if the disk is full or read-only, only as long as this process runs.

        Args:
            digests: of the images (B).
            results: one array (B, …) for each name.
        """
        self._results.update(zip(digests, zip(*results, strict=True), strict=True))
        file = self._folder / f"{hashlib.sha256(''.join(digests).encode()).hexdigest()[:32]}.npz"
        arrays: dict[str, Any] = {_DIGESTS: np.array(digests)}
        arrays.update(zip(self._names, results, strict=True))
        try:
            with storage_errors(file):
                make_folder(self._folder)
                with replacing(file) as temporary, temporary.open("wb") as opened:
                    np.savez(opened, **arrays)
        except (OSError, PipelineError) as error:
            logger.warning("Features are not kept for the next start: %s", error)

    def _read(self, file: Path) -> None:
        try:
            with np.load(file, allow_pickle=False) as stored:
                digests = [str(each) for each in stored[_DIGESTS]]
                rows = zip(*(stored[name] for name in self._names), strict=True)
                self._results.update(zip(digests, rows, strict=True))
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            logger.warning("%s is damaged; its features are computed again.", file.name)
