"""Predict any number of images into a table: memory is bounded and an interruption resumable.

Each of several threads reads, decodes and predicts a small batch, which occupies one core and fits
its cache. Only a few batches are in flight at a time; their predictions are written in order.

K: classes.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Container, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet

from patchline.pipeline.data.reading.child_processes import processors
from patchline.pipeline.data.reading.decoding import UndecodableImageError
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.packaging.prediction.image_files import (
    ImageFile,
    check_images,
    count_images,
    find_images,
    pixels_of,
)
from patchline.pipeline.packaging.prediction.prediction_parts import (
    ARGUMENT,
    VERSION,
    PredictionParts,
    PredictionState,
    open_parts,
    part_schema,
    parts_folder,
)
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.job_paths import SAME_PLACE
from patchline.pipeline.workers.missing_data import missing_data, stays_here
from patchline.pipeline.workers.worker_parts import (
    ROWS_FILE,
    PartDone,
    map_rows,
    number_of_parts,
    read_lines,
)
from patchline.pipeline.workers.worker_process import Worker
from patchline.pipeline.workspace.files.atomic_files import replace_file
from patchline.pipeline.workspace.files.table_cells import printable, table_cell

FEWEST_IMAGES = 500
"""With fewer images, a part is done before its worker would have started."""


class PredictionJob(FrozenModel):
    """The packaged model that predicts the images of a part, and what its rows have."""

    onnx_file: Path
    description_file: Path
    model_id: str
    archives: Annotated[tuple[Path, ...], SAME_PLACE] = ()
    """Archives that images are in, as absolute paths."""
    top_k: int
    whole: bool
    """Whether the rows have the probabilities of all classes, in a list."""
    spread: bool = False
    """Whether the rows have a column of probabilities for each label of a multi-label model."""
    coverage: float | None = None
    """Nominal coverage of the prediction sets; None for the package's own."""


PREDICTION = Worker("patchline.pipeline.packaging.prediction", PredictionJob, PartDone)
SUFFIXES = (".csv", ".parquet")
_BATCH = 16
_MOST_THREADS = 8
_AHEAD = 2
"""Batches per thread that may be in flight or waiting to be written."""
_PART_IMAGES = 4096
_MOST_IMAGES_OF_WORKER = 50_000
_TABLE_FILE = "rows.parquet"
_PART_PROBABILITIES = 4_000_000
"""The most probabilities in a part: 16 MB."""

OnProgress = Callable[[int, int, float], None]
"""Called with the images done, the total, and images/s."""


class PredictedTable(FrozenModel):
    """The content of a finished table."""

    images: int
    """Number of rows in the table."""
    unreadable: int
    """Number of images that could not be read; see the column `error`."""
    first_errors: tuple[tuple[str, str], ...]
    """Names and reasons of the first twenty of them."""
    answered_before: int
    """Number of images that an interrupted command had predicted."""
    changed: int = 0
    """Images that it had predicted as well, whose files have changed since; predicted again."""
    warning: str = ""
    """Warning about images with values outside of the range that the model was trained with; empty
    if there are none."""


class _PredictedBatch(NamedTuple):
    files: list[ImageFile]
    answers: list[dict[str, Any]]


def check_table(out: Path, top_k: int) -> None:
    """Refuse a table that cannot be written.

    Raises:
        ConfigError: if the file extension or the number of classes is wrong.
    """
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out is {out}, but must end in .csv or .parquet. Rename it.")
    if out.is_dir():
        raise ConfigError(f"--out is {out}, which is a folder. Give a file.")
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
    coverage: float | None = None,
    restart: bool = False,
    on_progress: OnProgress | None = None,
) -> PredictedTable:
    """Predict image files and all files below folders into a table.

    The columns are `image`, `label`, `probability`, `error`, `top_k` (JSON), `set` (JSON; null if
    it is not known), `coverage`, `warnings` (JSON) and `unchecked` (JSON: kinds of warnings that
    the model has no limit for); a Parquet file also has `probabilities` in the order of `classes`,
    a JSON list in its metadata. That of a multi-label model has `labels` (JSON: the names, the most
    probable first), and as CSV a column of probabilities for each label. For an image that cannot
    be read, `error` holds the reason. The predictions of an interrupted call are kept, even of
    files deleted since; files added or changed since are predicted.

    Args:
        model: the packaged model.
        model_id: identity of the model; an interrupted call resumes only with the same one.
        images: files, folders of files, or archives.
        out: a .csv or .parquet file; it is replaced at the very end.
        top_k: number of classes in the column `top_k`.
        probabilities: whether a Parquet file, and a CSV file of a multi-label model, includes the
            probabilities of all classes.
        coverage: probability that a set holds the true class; by default the package's own.
        restart: whether to discard the predictions of an interrupted call.
        on_progress: called after each batch.

    Raises:
        DataError: if a path does not exist, a folder or an archive holds no images, or an archive
            cannot be read.
        ConfigError: if the table's name or the state of an interrupted call does not match.
        StorageError: if the disk is full or read-only; earlier predictions are kept.
    """
    check_table(out, top_k)
    left_out = (out, parts_folder(out))
    check_images(images, left_out)
    total = count_images(images, left_out)
    whole = probabilities and out.suffix == ".parquet"
    spread = probabilities and not whole and model.is_multi_label
    given = tuple(printable(str(path)) for path in images)
    state = PredictionState(
        model=model_id, images=given, top_k=top_k, probabilities=whole or spread, coverage=coverage
    )
    onnx_file, description_file = (file.resolve() for file in model.files)
    job = PredictionJob(
        onnx_file=onnx_file,
        description_file=description_file,
        model_id=model_id,
        top_k=top_k,
        whole=whole,
        spread=spread,
        coverage=coverage,
    )
    rows = max(_BATCH, min(_PART_IMAGES, _PART_PROBABILITIES // len(model.classes)))
    schema = _schema(model, job)
    with open_parts(out, state, schema, rows=rows, restart=restart) as parts:
        before, left = parts.count(), total
        if before:  # what of it still counts is known once all files are compared with it
            left = sum(1 for _ in parts.without_done(find_images(images, left_out)))
        answered = before - parts.changed
        files = parts.without_done(find_images(images, left_out))
        progress, warnings = _reporter(on_progress, answered, answered + left), [""]
        divided = number_of_parts(left, FEWEST_IMAGES)
        listed = list(files) if divided > 1 else []
        if listed and not any(stays_here(each, ()) for each in _archives_of(listed)):
            warnings = _fill_by_workers(parts, job, listed, divided, progress)
        else:
            _fill(parts, model, job, chain(listed, files), progress)
        changed = parts.changed
        totals = parts.merge(out)
        parts.remove()
    return PredictedTable(
        **totals._asdict(),
        answered_before=before - changed,
        changed=changed,
        warning="; ".join(dict.fromkeys(each for each in [*warnings, model.fits.words()] if each)),
    )


def _fill_by_workers(
    parts: PredictionParts,
    job: PredictionJob,
    files: list[ImageFile],
    divided: int,
    progress: Callable[[int], None],
) -> list[str]:
    """Let workers predict, each a range of the files, and add their rows in order.

    Returns:
        The warnings of the workers.
    """
    divided = max(divided, -(-len(files) // _MOST_IMAGES_OF_WORKER))

    def job_of(_: Path, images: Sequence[ImageFile]) -> PredictionJob:
        return job.model_copy(update={"archives": tuple(_archives_of(images))})

    warnings, images = list[str](), list(map(_absolute, files))
    with map_rows(PREDICTION, images, divided, job_of, progress) as results:
        for folder, _, result in results:
            for table in _rows_in(folder / _TABLE_FILE):
                parts.add(table.cast(parts.schema))
            parts.flush()
            warnings.append(result.warning)
    return warnings


def predict_part(job: PredictionJob, events: EventWriter) -> PartDone:
    """Predict the images of a part, in their order, into a Parquet file.

    Raises:
        DataError: if this machine does not have the data.
    """
    files = [ImageFile(*each) for each in read_lines(events.folder / ROWS_FILE)]
    _check_data(files)
    model = PackagedModel(job.onnx_file, job.description_file)
    schema = part_schema(_schema(model, job))
    done = 0
    with (
        replace_file(events.folder / _TABLE_FILE) as temporary,
        pyarrow.parquet.ParquetWriter(temporary, schema) as writer,
        closing(_predictions(model, job, iter(files))) as batches,
    ):
        for batch in batches:
            writer.write_table(_table(batch, schema))
            done += len(batch.files)
            events.progress(done, len(files), "images")
    return PartDone(warning=model.fits.words())


def _check_data(files: Sequence[ImageFile]) -> None:
    """Refuse a part of which nothing is here: its rows would be errors, and final."""
    missing = [each for each in _archives_of(files) if not os.access(each, os.F_OK)]
    plain = [each.path for each in files if not each.archive and not each.error]
    if plain and not any(os.access(each, os.F_OK) for each in plain):
        missing.append(Path(plain[0]))
    if missing:
        raise missing_data(missing[0])


def _archives_of(files: Iterable[ImageFile]) -> list[Path]:
    """Return the archives that files are in."""
    return [Path(each) for each in dict.fromkeys(file.archive for file in files) if each]


def _absolute(file: ImageFile) -> ImageFile:
    """Return the file as a worker on another machine finds it; its name stays."""
    path = file.path if file.archive else str(Path(file.path).absolute())
    return file._replace(path=path, archive=file.archive and str(Path(file.archive).absolute()))


def _rows_in(file: Path) -> Iterator[pa.Table]:
    with pyarrow.parquet.ParquetFile(file) as opened:
        for batch in opened.iter_batches(_PART_IMAGES):
            yield pa.Table.from_batches([batch])


def _fill(
    parts: PredictionParts,
    model: PackagedModel,
    job: PredictionJob,
    files: Iterator[ImageFile],
    progress: Callable[[int], None],
) -> None:
    done = 0
    try:
        with closing(_predictions(model, job, files)) as batches:
            for batch in batches:
                parts.add(_table(batch, parts.schema))
                done += len(batch.files)
                progress(done)
    except (KeyboardInterrupt, SystemExit):
        parts.flush()
        raise


def _reporter(on_progress: OnProgress | None, before: int, total: int) -> Callable[[int], None]:
    """Return what reports how many images are done, besides those of before, and the rate."""
    began = time.monotonic()

    def report(done: int) -> None:
        if on_progress:
            seconds = max(time.monotonic() - began, 1e-9)
            on_progress(before + done, max(before + done, total), done / seconds)

    return report


def _predictions(
    model: PackagedModel, job: PredictionJob, files: Iterator[ImageFile]
) -> Generator[_PredictedBatch, None, None]:
    """Yield the predictions of all files, batch by batch, in order."""
    cores = processors()
    threads = min(cores, _MOST_THREADS)
    shared = model.with_threads(max(1, cores // threads))
    shared.keeps_outputs = True
    batches = iter(lambda: list(islice(files, _BATCH)), [])
    pool = ThreadPoolExecutor(threads, thread_name_prefix="predict")
    with _opencv_in_one_thread():
        try:
            futures = (pool.submit(_predict_batch, shared, job, batch) for batch in batches)
            yield from _in_order(futures, ahead=_AHEAD * threads)
        finally:
            pool.shutdown(cancel_futures=True)


def _in_order(futures: Iterable[Future[_PredictedBatch]], ahead: int) -> Iterator[_PredictedBatch]:
    """Yield results in order, with at most `ahead` more in flight."""
    waiting: deque[Future[_PredictedBatch]] = deque()
    for future in futures:
        waiting.append(future)
        if len(waiting) > ahead:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def _predict_batch(
    model: PackagedModel, job: PredictionJob, files: list[ImageFile]
) -> _PredictedBatch:
    decoded: list[np.ndarray[Any, Any] | str] = []
    for file in files:
        try:
            decoded.append(pixels_of(model, file))
        except UndecodableImageError as error:
            decoded.append(printable(str(error)))
    return _PredictedBatch(files, model.answers_to(decoded, job.top_k, coverage=job.coverage))


def _schema(model: PackagedModel, job: PredictionJob) -> pa.Schema:
    fields = {"image": pa.string()}
    fields |= {"labels": pa.string()} if model.is_multi_label else {}
    fields |= {"label": pa.string(), "probability": pa.float64()}
    fields |= {"error": pa.string(), "top_k": pa.string()}
    fields |= {"set": pa.string(), "coverage": pa.float64(), "warnings": pa.string()}
    fields |= {"unchecked": pa.string()}
    fields |= {"probabilities": pa.list_(pa.float32())} if job.whole else {}
    if job.spread:
        fields |= dict.fromkeys(_label_columns(model.classes, fields), pa.float32())
    return pa.schema(fields, metadata={"classes": json.dumps(model.classes), "model": job.model_id})


def _label_columns(labels: Sequence[str], taken: Container[str]) -> list[str]:
    """Return the name of each label's column: its own, unless another column is called so."""
    names = [f"class {label}" if label in taken else label for label in labels]
    return [table_cell(name) for name in names]  # a spreadsheet would compute some


def _table(batch: _PredictedBatch, schema: pa.Schema) -> pa.Table:
    """Return the rows of a batch."""
    files, answers = batch
    columns: dict[str, Any] = {
        ARGUMENT.name: [file.argument for file in files],
        VERSION.name: [file.version for file in files],
        "image": [file.name for file in files],
        **{name: [each[name] for each in answers] for name in ("label", "probability", "error")},
        **{
            name: [json.dumps(each[name]) for each in answers]
            for name in ("top_k", "warnings", "unchecked")
        },
        "set": [None if each["set"] is None else json.dumps(each["set"]) for each in answers],
        "coverage": [None if each["error"] else each["coverage"] for each in answers],
    }
    if "labels" in schema.names:
        columns["labels"] = [
            None
            if each["error"]
            else json.dumps([label["label"] for label in each["labels"]], ensure_ascii=False)
            for each in answers
        ]
    rows = [None if each["error"] else each["outputs"][0] for each in answers]
    if "probabilities" in schema.names:
        columns["probabilities"] = rows
    elif len(schema.names) > len(columns):  # one for each label
        for k, name in enumerate(schema.names[len(columns) :]):
            columns[name] = [None if row_K is None else row_K[k] for row_K in rows]
    return pa.table(columns, schema=schema)


@contextmanager
def _opencv_in_one_thread() -> Iterator[None]:
    """Keep OpenCV from starting threads, because each thread here decodes its own image."""
    before = cv2.getNumThreads()
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        cv2.setNumThreads(before)
