"""Record what a server computes: `patchline serve --record FOLDER`.

The folder holds parts `part-….jsonl`, one JSON object a line for each image that was answered:

| key | what it is |
|---|---|
| `id` | identifies the image |
| `time` | when it was answered; ISO 8601, UTC |
| `model`, `version` | what answered |
| `probabilities` | one for each class or label |
| `features` | the input of the head as float16 in base64; null if the package has no such output |
| `digest` | SHA-256 of the image's file, or of an array's shape and values; equal for copies |
| `image` | path of the image's file below the folder; null unless images are recorded, too |

A line is written at once, so a killed server leaves at most one that is not whole. When the folder
has no room for another part, the oldest parts and their images are removed. `patchline monitor`
reads it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import json
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import cv2
import numpy as np

from patchline.pipeline.errors import ConfigError, StorageError
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.access import check_no_link, check_own_folder
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.json_lines import AppendLog
from patchline.pipeline.workspace.files.workspace_folder import make_folder

logger = logging.getLogger(__name__)

Image = bytes | np.ndarray[Any, Any]
MARKER = "patchline-traffic.json"
"""In the folder; tells that its parts are recorded traffic."""
_FORMAT = 1
PARTS, IMAGES = "part-*.jsonl", "images"
_LOCK = ".server.lock"
"""Held while a server records into the folder."""
_LARGEST_FEATURE = float(np.finfo(np.float16).max)
MOST_BYTES = 256 << 20
"""Size of a folder beyond which the oldest parts are removed."""
_ROWS = 1000
"""Lines of a full part."""
_LARGEST_PART_SHARE = 0.1
"""A part that has grown, with its images, to this share of the folder is full, too."""
_RETRY_SECONDS = 30.0
"""After so long, a disk that has failed is tried again."""
_CLOSE_SECONDS = 5.0
_SUFFIXES = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif"}
_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_IMAGE = re.compile(rf"{IMAGES}/[0-9a-f]{{32}}(\.[a-z]+)?")


class _Row(NamedTuple):
    """One image that was answered."""

    line: str
    """The image's line in a part of the recording."""
    file: Path | None
    """The file of the image; None if images are not recorded."""
    bytes: int
    """The size of the line and of the image, in bytes."""


class TrafficRecorder:
    """Writes parts into a folder; called by the threads that compute.

    Those threads wait for each other only while lines are appended. A thread of its own keeps the
    size of the folder. Each server has a folder of its own.

    Args:
        folder: created if it does not exist; only its owner can read what is recorded.
        with_images: record the images, too.
        most_bytes: size of the folder beyond which the oldest parts are removed.

    Raises:
        ConfigError: if the folder cannot be written, holds other files, others may write to it, or
            another server records into it.
    """

    def __init__(self, folder: Path, *, with_images: bool, most_bytes: int = MOST_BYTES) -> None:
        self.folder, self.with_images, self.most_bytes = folder, with_images, most_bytes
        self.problem: str | None = None
        """Why nothing is recorded at the moment; None if it is."""
        self.missed = 0
        """Images that were answered and could not be recorded."""
        self._lock = threading.Lock()
        self._part: TextIO | None = None
        self._part_began = dt.datetime.fromtimestamp(0, dt.UTC)
        self._part_rows = self._part_bytes = 0
        self._paused_until = 0.0
        self._part_begins = threading.Event()
        self._closed = False
        try:
            self._prepare()
            alive = file_locks.acquire(folder / _LOCK, 0)
            self._bytes = _measure_size(folder)
        except (OSError, StorageError) as error:
            raise ConfigError(
                f"--record is {folder}, which cannot be written ({_reason(error)}). Name a folder "
                "that you may write to."
            ) from error
        if alive is None:
            raise ConfigError(
                f"--record is {folder}, where another server records, and each server needs a "
                "folder of its own. Name another folder."
            )
        self._alive = alive
        self._pruning = threading.Thread(target=self._prune, name="traffic-size", daemon=True)
        self._pruning.start()

    def _prepare(self) -> None:
        """Create the folder, or check that it holds nothing else."""
        folder = self.folder
        if not folder.exists():
            make_folder(folder)
            folder.chmod(_FOLDER_MODE)
        self._check_folders()
        others = [each for each in folder.iterdir() if not _is_own(each)]
        if others and not (folder / MARKER).exists():
            raise ConfigError(
                f"--record is {folder}, which holds other files, such as {others[0].name}. "
                "Name an empty or a new folder."
            )
        check_format(folder)
        if self.with_images:
            (folder / IMAGES).mkdir(exist_ok=True, mode=_FOLDER_MODE)
        write_text(folder / MARKER, json.dumps({"format": _FORMAT}) + "\n")

    def _check_folders(self) -> None:
        """Refuse folders where others may write, and links in place of the files."""
        remedy = "name a folder of your own"
        check_own_folder(self.folder, "--record", remedy)
        for each in self.folder.iterdir():
            check_no_link(each, "--record")
        if (self.folder / IMAGES).is_dir():
            check_own_folder(self.folder / IMAGES, "The folder of --record-images", remedy)

    def record(
        self,
        model: str,
        version: str,
        images: Sequence[Image],
        outputs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]],
    ) -> None:
        """Write a line for each image; a disk that fails pauses the recording, not the server.

        Args:
            model: the name of the model that has answered.
            version: the version of that model.
            images: the images as the clients sent them.
            outputs: probabilities (K) and features (D) of each image.
        """
        with self._lock:
            if self._closed or time.monotonic() < self._paused_until:
                self.missed += len(images)
                return
        rows: list[_Row] = []
        try:
            for image, (probabilities_K, features_D) in zip(images, outputs, strict=True):
                rows.append(self._row(model, version, image, probabilities_K, features_D))
            self._append(rows)
        except OSError as error:
            _remove_images(rows)
            self._pause(error, len(images))
        except Exception:
            _remove_images(rows)
            raise

    def close(self) -> None:
        """Close the part, and let another server have the folder."""
        with self._lock, contextlib.suppress(OSError):
            self._closed = True
            self._close_part()
        self._part_begins.set()
        self._pruning.join(_CLOSE_SECONDS)
        self._alive.release()

    def _row(
        self,
        model: str,
        version: str,
        image: Image,
        probabilities_K: np.ndarray[Any, Any],
        features_D: np.ndarray[Any, Any] | None,
    ) -> _Row:
        """Save an image if images are recorded, and return its line."""
        now, key = dt.datetime.now(dt.UTC), uuid.uuid4().hex
        file, image_bytes = self._named(image, key) if self.with_images else (None, b"")
        content = {
            "id": key,
            "time": now.isoformat(timespec="milliseconds"),
            "model": model,
            "version": version,
            "probabilities": [round(float(each), 7) for each in probabilities_K],
            "features": _pack(features_D),
            "digest": _digest(image),
            "image": None if file is None else f"{IMAGES}/{file.name}",
        }
        line = json.dumps(content, separators=(",", ":")) + "\n"
        if file is not None:
            _save(image_bytes, file)
        return _Row(line, file, len(line) + len(image_bytes))

    def _named(self, image: Image, key: str) -> tuple[Path, bytes]:
        """Return the file that an image is saved as, and its content."""
        content = image if isinstance(image, bytes) else _png(image)
        suffix = next((each for start, each in _SUFFIXES.items() if content.startswith(start)), "")
        return self.folder / IMAGES / f"{key}{suffix}", content

    def _append(self, rows: Sequence[_Row]) -> None:
        """Write lines at the end of the part, or of a new one."""
        with self._lock:
            if self._closed:
                return
            for row in rows:
                part = self._unfinished_part()
                part.write(row.line)
                self._part_rows += 1
                self._part_bytes += row.bytes
                self._bytes += row.bytes
            if self._part is not None:
                self._part.flush()
            if self.problem is not None and time.monotonic() >= self._paused_until:
                self.problem = None
                logger.info("Traffic is recorded again; %d images are missing.", self.missed)

    def _unfinished_part(self) -> TextIO:
        part = self._part
        is_full = (
            self._part_rows >= _ROWS or self._part_bytes >= self.most_bytes * _LARGEST_PART_SHARE
        )
        if part is None or is_full:
            self._close_part()
            next_one = self._part_began + dt.timedelta(microseconds=1)
            self._part_began = max(dt.datetime.now(dt.UTC), next_one)  # a clock may be set back
            file = self.folder / f"part-{self._part_began:%Y%m%d-%H%M%S.%f}.jsonl"
            self._part = part = open(file, "x", encoding="utf-8", opener=_private)  # noqa: SIM115 - until it is full
            self._part_rows = self._part_bytes = 0
            self._part_begins.set()
        return part

    def _close_part(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            part.close()

    def _pause(self, error: Exception, missed: int = 0) -> None:
        """Record nothing for a while, because the disk has failed."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._close_part()  # its last line may be cut
            self._paused_until = time.monotonic() + _RETRY_SECONDS
            self.missed += missed
            is_new, self.problem = self.problem is None, _reason(error)
        if is_new:
            logger.warning(
                "Traffic is not recorded at the moment: %s cannot be written (%s). It is tried "
                "again every %.0f s.",
                self.folder,
                self.problem,
                _RETRY_SECONDS,
            )

    # -- in the thread that keeps the size ---------------------------------------------------------

    def _prune(self) -> None:
        while self._part_begins.wait() and not self._closed:
            self._part_begins.clear()
            try:
                self._keep_size()
            except (OSError, StorageError) as error:
                self._pause(error)

    def _keep_size(self) -> None:
        """Remove the oldest parts if the folder has no room for another one.

        The folder is measured before anything is removed: a person may have removed something.
        """
        room = self.most_bytes * (1 - _LARGEST_PART_SHARE)
        if self._bytes <= room:
            return
        counted = self._bytes
        measured = _measure_size(self.folder)
        with self._lock:  # what was written meanwhile may count twice, until the next time
            self._bytes += measured - counted
        if self._bytes > room:
            self._remove_oldest(room - self.most_bytes * _LARGEST_PART_SHARE)

    def _remove_oldest(self, most: float) -> None:
        """Remove the oldest parts, with their images, until the folder is small enough.

        Args:
            most: the largest allowed size of the folder, in bytes.
        """
        parts = sorted(part for part in self.folder.glob(PARTS) if part.is_file())
        with self._lock:
            open_part = None if self._part is None else Path(self._part.name)
        for part in parts:
            if self._bytes <= most or self._closed:
                break
            if part == open_part:
                continue
            removed = _size(part)
            for row in rows_of(part):
                if image := _image_of(row):
                    file = self.folder / image
                    removed += _size(file)
                    file.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            with self._lock:
                self._bytes -= removed
            logger.info("Removed the oldest recorded traffic, %s, to keep the size.", part.name)


def is_traffic(folder: Path) -> bool:
    """Return whether a folder holds recorded traffic."""
    try:
        return (folder / MARKER).is_file()
    except OSError:
        return False


def check_format(folder: Path) -> None:
    """Refuse recorded traffic of a later Patchline.

    Raises:
        ConfigError: if its format is newer.
    """
    try:
        written = json.loads((folder / MARKER).read_bytes())["format"]
    except (OSError, ValueError, LookupError, TypeError):  # a new folder, or a marker that was cut
        return
    if written != _FORMAT:
        raise ConfigError(
            f"The recorded traffic in {folder} has format {written}, and this version of Patchline "
            f"knows {_FORMAT}. Update Patchline, or name another folder."
        )


def rows_of(part: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a part; one that a kill has cut is left out."""
    return [row for row in AppendLog(part).new_values() if isinstance(row, dict)]


def features_of(row: dict[str, Any]) -> np.ndarray[Any, Any] | None:
    """Return the features (D) of a line; None if it has none."""
    packed = row.get("features")
    return None if packed is None else np.frombuffer(base64.b64decode(packed), np.float16)


def _digest(image: Image) -> str:
    if isinstance(image, bytes):
        return hashlib.sha256(image).hexdigest()
    digest = hashlib.sha256(f"{image.dtype.str} {image.shape}".encode())
    digest.update(np.ascontiguousarray(image).data)
    return digest.hexdigest()


def _pack(features_D: np.ndarray[Any, Any] | None) -> str | None:
    if features_D is None:
        return None
    bounded = np.clip(features_D, -_LARGEST_FEATURE, _LARGEST_FEATURE).astype(np.float16)
    return base64.b64encode(bounded.tobytes()).decode()


def _png(pixels: np.ndarray[Any, Any]) -> bytes:
    """Return an array (H, W) or (H, W, C) as a PNG file."""
    colours = pixels.ndim == 3 and pixels.shape[2] >= 3  # noqa: PLR2004 - RGB
    ordered = np.ascontiguousarray(pixels[:, :, :3][:, :, ::-1] if colours else pixels)
    return cv2.imencode(".png", ordered)[1].tobytes()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size if file.is_file() else 0
    except OSError:
        return 0


def _is_own(entry: Path) -> bool:
    return entry.name in (MARKER, IMAGES, "labels.csv") or entry.name.startswith(("part-", "."))


def _measure_size(folder: Path) -> int:
    """Return the bytes of all parts and images."""
    size = 0
    for place in (folder, folder / IMAGES):
        with contextlib.suppress(FileNotFoundError), os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                    size += entry.stat().st_size if entry.is_file() else 0
    return size


def _save(content: bytes, file: Path) -> None:
    """Write the file of an image whole, or not at all."""
    try:
        with open(file, "xb", opener=_private) as opened:
            opened.write(content)
    except OSError:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)
        raise


def _private(file: str, flags: int) -> int:
    """Open a new file that only its owner may read; a link is no new file."""
    return os.open(file, flags, _FILE_MODE)


def _image_of(row: dict[str, Any]) -> str | None:
    """Return the path of an image that a recorder has written; None for any other path."""
    path = str(row.get("image"))
    return path if _IMAGE.fullmatch(path) else None


def _remove_images(rows: Sequence[_Row]) -> None:
    """Remove the images of lines that were not written: no part would remove them one day."""
    for row in rows:
        if row.file is not None:
            with contextlib.suppress(OSError):
                row.file.unlink(missing_ok=True)


def _reason(error: Exception) -> str:
    """Return why the folder cannot be used, without its path: clients see it."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return str(getattr(cause, "strerror", None) or type(error).__name__)
