"""Images that are decoded while a folder is scanned, kept for the prepared store.

Describing an image decodes it. Where the format of the store is certain before the scan, because
neither a preset nor initial weights choose the size, the resized images are kept. They look like a
store that somebody has begun and not published: the run completes it, or copies from it. If the run
is refused, for example because a class has too few images, the next one does so.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.image_size import are_grey, default_image_size
from patchline.pipeline.data.manifests.describing import Files, KeptImageArray, Row
from patchline.pipeline.data.manifests.scanning import digest_of_root
from patchline.pipeline.data.pixel_values.file_summary import FileSummary
from patchline.pipeline.data.reading.child_processes import threads
from patchline.pipeline.data.reading.decoding import ImageHeader, UndecodableImageError, read_header
from patchline.pipeline.data.reading.image_root import root_image_bytes
from patchline.pipeline.data.store.store_builds import DRAFT_FILE, DecodedBuild, lock_of
from patchline.pipeline.data.store.store_shards import DecodedFiles, Pixels, StoreSpec
from patchline.pipeline.workspace import cache_limit
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.workspace_folder import make_folder
from patchline.pipeline.workspace.workspace import workspace_of

logger = logging.getLogger(__name__)

_FORMAT = 1
_CHANNELS = 3
"""The description is of the image in color; grey images are decoded in another way."""
_SAMPLE = 32
_ROWS_AT_ONCE = 256
_SCANNING = ".scanning-"


class ScanDraft:
    """Keeps the images that a scan decodes.

    Args:
        config: the settings that the scan is for.
        root: the folder or archive.
        workspace: the folder `.patchline`.
    """

    def __init__(self, config: RunConfig, root: Path, workspace: Path) -> None:
        self._config, self._root = config, root
        self._stores = workspace / "prepared"

    @contextmanager
    def opened(self, files: Files) -> Iterator[OpenScanDraft | None]:
        """Begin a scan of these files; None if the store's format is not certain or does not fit.

        What is not finished is removed.
        """
        spec = self._certain_format(files)
        if spec is None:
            yield None
            return
        make_folder(self._stores)
        for abandoned in self._stores.glob(f"{_SCANNING}*"):  # by a scan that was killed
            with file_locks.try_lock(lock_of(abandoned)) as free:
                if free:
                    shutil.rmtree(abandoned, ignore_errors=True)
        folder = self._stores / f"{_SCANNING}{digest_of_root(self._root, _FORMAT)}"
        with file_locks.try_lock(lock_of(folder)) as free:
            try:
                yield self._begun(folder, spec, len(files)) if free else None
            finally:
                if free:
                    shutil.rmtree(folder, ignore_errors=True)

    def _begun(self, folder: Path, spec: StoreSpec, count: int) -> OpenScanDraft | None:
        held = DecodedFiles(folder, spec.shape(count))
        if not held.fit_the_disk(copies=2):  # the store may have to be a copy
            return None
        if workspace_of(self._stores).uri and held.images.bytes_to_allocate() > cache_limit.limit():
            return None  # the store will be on the object store
        try:
            make_folder(folder)
            held.begin(np.zeros((count, 32), np.uint8), held.shards())
        except OSError as error:  # the images are then decoded once more
            logger.debug("no images are kept while they are read: %s", error)
            return None
        return OpenScanDraft(
            folder, spec, self._root, KeptImageArray(held.images.file, spec.resize)
        )

    def _certain_format(self, files: Files) -> StoreSpec | None:
        """Return the format that the store will have, if a few headers show it."""
        config, data = self._config, self._config.data
        if data.bands:  # the draft holds the colors of each image's format
            return None
        chosen_later = data.image_size is None and bool(config.preset or config.model.init)
        if data.store == "packed" or chosen_later or data.channels not in {None, _CHANNELS}:
            return None
        headers = list(self._headers(files))
        if not headers or (data.channels is None and are_grey(each.mode for each in headers)):
            return None
        median = int(np.median([min(each.width, each.height) for each in headers]))
        side = data.image_size or default_image_size(median)
        return StoreSpec(_CHANNELS, side, side, data.resize)

    def _headers(self, files: Files) -> Iterator[ImageHeader]:
        paths = [listed.path for listed, is_wanted in files if is_wanted]
        for path in paths[:: max(1, len(paths) // _SAMPLE)]:
            try:
                with root_image_bytes(self._root, path) as content:
                    yield read_header(content)
            except UndecodableImageError:
                continue


class OpenScanDraft:
    """The images of one scan, a row for each file.

    Args:
        folder: the folder of the draft.
        spec: the format of the images.
        root: the folder or archive that is scanned.
        images: the array that receives the images.
    """

    def __init__(self, folder: Path, spec: StoreSpec, root: Path, images: KeptImageArray) -> None:
        self._folder, self._spec, self._root = folder, spec, root
        self.images = images

    def finish(self, rows: Sequence[Row]) -> None:
        """Keep the images of these rows, which are all of the scan, for the prepared store."""
        usable = [place for place, row in enumerate(rows) if row["status"] == "ok"]
        summaries = [FileSummary.read(rows[place]["values"]) for place in usable]
        if not usable or any(each.is_deep or each.hidden for each in summaries):  # mapped later
            return
        self._close_gaps(np.array(usable))
        named = [(rows[place]["path"], rows[place]["sha256"]) for place in usable]
        table = pd.DataFrame(named, columns=["path", "sha256"])
        build = DecodedBuild(table, self._root, self._spec, self._folder.parent, None, 0)
        files = build.files(self._folder)
        files.begin(build.contents, files.shards())
        with threads() as pool:
            list(pool.map(files.finished.add, files.shards()))
        (self._folder / DRAFT_FILE).touch()
        with file_locks.try_lock(lock_of(build.store)) as free:
            if free and not build.store.exists():
                shutil.rmtree(build.building, ignore_errors=True)
                self._folder.rename(build.building)

    def _close_gaps(self, usable: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Move the images of these rows to the first rows."""
        images: Pixels = np.load(self.images.file, mmap_mode="r+", allow_pickle=False)
        for first in range(0, len(usable), _ROWS_AT_ONCE):
            rows = usable[first : first + _ROWS_AT_ONCE]
            if rows[-1] != first + len(rows) - 1:
                images[first : first + len(rows)] = images[rows]
