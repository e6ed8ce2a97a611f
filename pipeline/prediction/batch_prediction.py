"""Predict any number of images into a table: in constant memory, and to be gone on with.

Several threads each read, decode and predict a small batch, which keeps one core busy and stays in
its cache. Only a few batches are on their way at a time, and their answers are taken in order.

N: images of a batch, R: those of them that could be read, K: classes.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pyarrow as pa

from pipeline.data.decoding import UndecodableImageError
from pipeline.errors import ConfigError
from pipeline.packaging.packaged_model import PackagedModel
from pipeline.prediction.image_files import (
    ImageFile,
    check_images,
    count_images,
    find_images,
    printable,
)
from pipeline.prediction.prediction_parts import (
    PredictionParts,
    PredictionState,
    open_parts,
    parts_folder,
)
from pipeline.section import Section

SUFFIXES = (".csv", ".parquet")
_BATCH = 16
_MOST_THREADS = 8
_AHEAD = 2
"""Batches for each thread that may be on their way or wait to be taken."""
_PART_IMAGES = 4096
_PART_PROBABILITIES = 4_000_000
"""No part holds more of them: 16 MB."""

OnProgress = Callable[[int, int, float], None]
"""Called with images done, images in all, and images/s."""


class PredictedTable(Section):
    """What a finished table holds."""

    images: int
    """Rows of the table."""
    unreadable: int
    """Images that could not be read; the column `error` says why."""
    first_errors: tuple[tuple[str, str], ...]
    """Name and reason of the first twenty of them."""
    answered_before: int
    """Images that an interrupted command had answered."""


class _Answered(NamedTuple):
    files: list[ImageFile]
    errors: list[str | None]
    probabilities_RK: np.ndarray[Any, Any]


def check_table(out: Path, top_k: int) -> None:
    """Refuse a table that cannot be written.

    Raises:
        ConfigError: if the file's ending or the number of classes is wrong.
    """
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out is {out}, but must end in .csv or .parquet. Rename it.")
    if out.is_dir():
        raise ConfigError(f"--out is {out}, which is a folder. Name a file.")
    if top_k < 1:
        raise ConfigError(f"--top-k is {top_k}, but must be at least 1. Choose a larger number.")


def predict_images(
    model: PackagedModel,
    model_id: str,
    images: Sequence[Path],
    out: Path,
    *,
    top_k: int = 3,
    probabilities: bool = True,
    restart: bool = False,
    on_progress: OnProgress | None = None,
) -> PredictedTable:
    """Predict image files and all files below folders into a table.

    The columns are `image`, `label`, `probability`, `error` and `top_k` (JSON); a Parquet file
    also has `probabilities` in the order of `classes`, a JSON list in its metadata. An image that
    cannot be read gets its reason in `error`. What an interrupted call has answered is kept, also
    of files that have gone since; files that have come since are answered.

    Args:
        model: the packaged model.
        model_id: says which model it is; an interrupted call goes on with the same one only.
        images: files, or folders of them.
        out: a file that ends in .csv or .parquet; it is replaced at the very end.
        top_k: how many classes `top_k` names.
        probabilities: whether a Parquet file holds the probabilities of all classes.
        restart: forget what an interrupted call has answered.
        on_progress: called after each batch.

    Raises:
        DataError: if a path does not exist, or a folder holds no files.
        ConfigError: if the table's name, or what an interrupted call has left, does not fit.
        StorageError: if the disk is full or read-only; what was answered before stays.
    """
    check_table(out, top_k)
    left_out = (out, parts_folder(out))
    check_images(images, left_out)
    total = count_images(images, left_out)
    whole = probabilities and out.suffix == ".parquet"
    given = tuple(printable(str(path)) for path in images)
    state = PredictionState(model=model_id, images=given, top_k=top_k, probabilities=whole)
    rows = max(_BATCH, min(_PART_IMAGES, _PART_PROBABILITIES // len(model.classes)))
    schema = _schema(model, model_id, whole=whole)
    with open_parts(out, state, schema, rows=rows, restart=restart) as parts:
        before = parts.count()
        files = parts.without_done(find_images(images, left_out))
        _fill(parts, model, files, top_k, _Progress(on_progress, before, total))
        totals = parts.merge(out)
        parts.remove()
    return PredictedTable(
        images=totals.images,
        unreadable=totals.errors,
        first_errors=totals.first_errors,
        answered_before=before,
    )


def _fill(
    parts: PredictionParts,
    model: PackagedModel,
    files: Iterator[ImageFile],
    top_k: int,
    progress: _Progress,
) -> None:
    try:
        with closing(_answers(model, files)) as answers:
            for answered in answers:
                parts.add(_table(answered, parts.schema, model, top_k))
                progress.advance(len(answered.files))
    except (KeyboardInterrupt, SystemExit):
        parts.flush()
        raise


class _Progress:
    """Counts, and says how fast."""

    def __init__(self, on_progress: OnProgress | None, done: int, total: int) -> None:
        self._on_progress = on_progress
        self._before, self._done, self._total = done, done, total
        self._began = time.monotonic()

    def advance(self, images: int) -> None:
        self._done += images
        if self._on_progress:
            seconds = max(time.monotonic() - self._began, 1e-9)
            rate = (self._done - self._before) / seconds
            self._on_progress(self._done, max(self._done, self._total), rate)


def _answers(model: PackagedModel, files: Iterator[ImageFile]) -> Generator[_Answered, None, None]:
    """Yield the answers of all files, batch by batch, in order."""
    cores = _usable_cores()
    threads = min(cores, _MOST_THREADS)
    shared = model.with_threads(max(1, cores // threads))
    batches = iter(lambda: list(islice(files, _BATCH)), [])
    pool = ThreadPoolExecutor(threads, thread_name_prefix="predict")
    with _opencv_in_one_thread():
        try:
            futures = (pool.submit(_answered, shared, batch) for batch in batches)
            yield from _in_order(futures, ahead=_AHEAD * threads)
        finally:
            pool.shutdown(cancel_futures=True)


def _in_order(futures: Iterable[Future[_Answered]], ahead: int) -> Iterator[_Answered]:
    """Yield results in order, while at most `ahead` more are on their way."""
    waiting: deque[Future[_Answered]] = deque()
    for future in futures:
        waiting.append(future)
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _answered(model: PackagedModel, files: list[ImageFile]) -> _Answered:
    pixels: list[np.ndarray[Any, Any]] = []
    errors: list[str | None] = []
    for file in files:
        reason: str | None = file.error or None
        if reason is None:
            try:
                pixels.append(model.pixels(Path(file.path)))
            except UndecodableImageError as error:
                reason = printable(str(error))
        errors.append(reason)
    none = np.empty((0, len(model.classes)), np.float32)
    probabilities_RK = model.probabilities(np.stack(pixels)) if pixels else none
    return _Answered(files, errors, probabilities_RK)


def _schema(model: PackagedModel, model_id: str, *, whole: bool) -> pa.Schema:
    fields = {"image": pa.string(), "label": pa.string(), "probability": pa.float64()}
    fields |= {"error": pa.string(), "top_k": pa.string()}
    fields |= {"probabilities": pa.list_(pa.float32())} if whole else {}
    return pa.schema(fields, metadata={"classes": json.dumps(model.classes), "model": model_id})


def _table(answered: _Answered, schema: pa.Schema, model: PackagedModel, top_k: int) -> pa.Table:
    """Return the rows of a batch."""
    ranked: list[list[dict[str, Any]]] = [[] for _ in answered.files]
    readable = [row for row, error in enumerate(answered.errors) if error is None]
    for row, row_K in zip(readable, answered.probabilities_RK, strict=True):
        ranked[row] = model.ranked(row_K, top_k)
    columns: dict[str, Any] = {
        "argument": [file.argument for file in answered.files],
        "image": [file.name for file in answered.files],
        "label": [best[0]["label"] if best else None for best in ranked],
        "probability": [best[0]["probability"] if best else None for best in ranked],
        "error": answered.errors,
        "top_k": [json.dumps(best) for best in ranked],
    }
    if "probabilities" in schema.names:
        rows: list[np.ndarray[Any, Any] | None] = [None] * len(ranked)
        for row, row_K in zip(readable, answered.probabilities_RK, strict=True):
            rows[row] = row_K
        columns["probabilities"] = rows
    return pa.table(columns, schema=schema)


def _usable_cores() -> int:
    """Return how many cores this process may use, where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _opencv_in_one_thread() -> Iterator[None]:
    """Let the threads here be the only ones: each decodes an image of its own."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)
