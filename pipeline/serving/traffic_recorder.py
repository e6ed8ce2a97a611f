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
exceeds its size, the oldest parts and their images are removed. `patchline monitor` reads it.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import hashlib
import json
import logging
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import cv2
import numpy as np

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.files.workspace_folder import make_folder, make_private_file

logger = logging.getLogger(__name__)

Image = bytes | np.ndarray[Any, Any]
MARKER = "patchline-traffic.json"
"""In the folder; tells that its parts are recorded traffic."""
PARTS, IMAGES = "part-*.jsonl", "images"
_LARGEST_FEATURE = float(np.finfo(np.float16).max)
_ROWS = 1000
"""Lines of a part."""
_CHECKED_ROWS = 100
"""After so many lines, the size of the folder is checked."""
_SUFFIXES = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif"}
_FOLDER_MODE = 0o700


class TrafficRecorder:
    """Writes parts into a folder; called by the threads that compute.

    Args:
        folder: created if it does not exist; only its owner can read what is recorded.
        with_images: record the images, too.
        most_bytes: size of the folder beyond which the oldest parts are removed.

    Raises:
        ConfigError: if the folder cannot be written, or holds other files.
    """

    def __init__(self, folder: Path, *, with_images: bool, most_bytes: int) -> None:
        self.folder, self.with_images, self.most_bytes = folder, with_images, most_bytes
        self._lock = threading.Lock()
        self._part: TextIO | None = None
        self._rows = self._since_check = 0
        self._stopped = False
        try:
            if not folder.exists():
                make_folder(folder)
                folder.chmod(_FOLDER_MODE)
            others = [each for each in folder.iterdir() if not _is_own(each)]
            if others and not (folder / MARKER).exists():
                raise ConfigError(
                    f"--record is {folder}, which holds other files, such as {others[0].name}. "
                    "Name an empty or a new folder."
                )
            if with_images:
                (folder / IMAGES).mkdir(exist_ok=True, mode=_FOLDER_MODE)
            (folder / MARKER).write_text(json.dumps({"format": 1}) + "\n", encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"--record is {folder}, which cannot be written ({error.strerror}). Name a folder "
                "that you may write to."
            ) from error

    def record(
        self,
        model: str,
        version: str,
        images: Sequence[Image],
        outputs: Sequence[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None]],
    ) -> None:
        """Write a line for each image; a disk that fails ends the recording, not the server.

        Args:
            model: that has answered.
            version: of it.
            images: as the clients sent them.
            outputs: probabilities (K) and features (D) of each image.
        """
        with self._lock:
            if self._stopped:
                return
            try:
                for image, (probabilities_K, features_D) in zip(images, outputs, strict=True):
                    self._write(model, version, image, probabilities_K, features_D)
                if self._part is not None:
                    self._part.flush()
            except OSError as error:
                self._stopped = True
                logger.warning(
                    "Traffic is no longer recorded: %s cannot be written (%s).",
                    self.folder,
                    error.strerror,
                )

    def close(self) -> None:
        """Close the part."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    def _write(
        self,
        model: str,
        version: str,
        image: Image,
        probabilities_K: np.ndarray[Any, Any],
        features_D: np.ndarray[Any, Any] | None,
    ) -> None:
        now, key = dt.datetime.now(dt.UTC), uuid.uuid4().hex
        if self._part is None or self._rows >= _ROWS:
            self._close()
            file = self.folder / f"part-{now:%Y%m%d-%H%M%S.%f}-{key[:8]}.jsonl"
            make_private_file(file)
            self._part, self._rows = file.open("a", encoding="utf-8"), 0
        line = {
            "id": key,
            "time": now.isoformat(timespec="milliseconds"),
            "model": model,
            "version": version,
            "probabilities": [round(float(each), 7) for each in probabilities_K],
            "features": _packed(features_D),
            "digest": _digest(image),
            "image": self._saved(image, key) if self.with_images else None,
        }
        self._part.write(json.dumps(line, separators=(",", ":")) + "\n")
        self._rows += 1
        self._since_check += 1
        if self._since_check >= _CHECKED_ROWS:
            self._since_check = 0
            self._part.flush()
            self._remove_oldest(Path(self._part.name))

    def _saved(self, image: Image, key: str) -> str:
        content = image if isinstance(image, bytes) else _png(image)
        suffix = next((each for start, each in _SUFFIXES.items() if content.startswith(start)), "")
        file = self.folder / IMAGES / f"{key}{suffix}"
        make_private_file(file)
        file.write_bytes(content)
        return f"{IMAGES}/{file.name}"

    def _remove_oldest(self, current: Path) -> None:
        """Remove the oldest parts, with their images, until the folder is small enough."""
        size = sum(_size(each) for each in self.folder.rglob("*"))
        for part in sorted(self.folder.glob(PARTS)):
            if size <= self.most_bytes or part == current:
                break
            removed = _size(part)
            for row in rows_of(part):
                if row.get("image"):
                    file = self.folder / IMAGES / Path(str(row["image"])).name
                    removed += _size(file)
                    file.unlink(missing_ok=True)
            part.unlink(missing_ok=True)
            size -= removed
            logger.info("Removed the oldest recorded traffic, %s, to keep the size.", part.name)


def is_traffic(folder: Path) -> bool:
    """Return whether a folder holds recorded traffic."""
    try:
        return (folder / MARKER).is_file()
    except OSError:
        return False


def rows_of(part: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a part; one that a kill has cut is left out."""
    rows = []
    try:
        for line in part.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    rows.append(row)
    except FileNotFoundError:  # removed in the meantime
        return []
    return rows


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


def _packed(features_D: np.ndarray[Any, Any] | None) -> str | None:
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
