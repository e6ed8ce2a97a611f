"""Recall and precision of the search for near duplicates, and its time for many images.

python -m benchmarks.near_duplicates FOLDER [--hashes N] [--sheet FILE]

A twentieth of the images are planted once more: cropped to 80% of each side at a random place,
mirrored, saved as JPEG of quality 30, or scaled to three quarters of the size and back. A pair with
a planted image is right if the other one is its original, or a natural duplicate of its original;
pairs without a planted image are the data's own near duplicates, counted apart and drawn in the
sheet. With `--hashes` N, mixtures of two images each are searched for near duplicates too, then the
last hundredth of them as if the others had been searched before.
"""

from __future__ import annotations

import argparse
import resource
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from benchmarks.measured_runs import machine
from patchline.pipeline import config_files
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import content_numbers
from patchline.pipeline.data.near_duplicates.matching import matches
from patchline.pipeline.data.near_duplicates.thumbnails import Thumbnails
from patchline.pipeline.evaluation.inspection.inspecting import ImageMeasures

Array = np.ndarray[Any, Any]
Pairs = dict[tuple[int, int], float]
PLANTED = 20
"""One image in this many is planted again."""
_SHARE_OF_NEW = 100
_SHEET_PAIRS, _SHEET_SIDE = 120, 48


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hashes", type=int, default=0)
    parser.add_argument("--sheet", type=Path)
    arguments = parser.parse_args()
    print(machine())
    measures = ImageMeasures()
    rows, planted = _read(arguments.folder, measures)
    paths = pd.Series([*rows["path"], *(path for path, _, _ in planted)])
    thumbnails = measures.thumbnails(paths)
    began = time.perf_counter()
    pairs = _pairs(thumbnails)
    print(f"{len(paths):,} images searched in {time.perf_counter() - began:.0f} s")
    natural = {pair: value for pair, value in pairs.items() if max(pair) < len(rows)}
    _print_recall(rows, planted, pairs)
    _print_precision(rows, planted, pairs, natural)
    _print_natural(rows, natural)
    if arguments.sheet:
        _draw_sheet(thumbnails, natural, arguments.sheet)
    if arguments.hashes:
        _print_speed(thumbnails, arguments.hashes)
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


def _crop(image: Array, generator: np.random.Generator) -> Array:
    height, width = image.shape[:2]
    rows, columns = round(0.8 * height), round(0.8 * width)
    top, left = generator.integers(height - rows + 1), generator.integers(width - columns + 1)
    part = np.ascontiguousarray(image[top : top + rows, left : left + columns])
    return cv2.resize(part, (width, height), interpolation=cv2.INTER_CUBIC)


def _mirror(image: Array, _: np.random.Generator) -> Array:
    return np.ascontiguousarray(image[:, ::-1])


def _jpeg(image: Array, _: np.random.Generator) -> Array:
    encoded = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 30])[1]
    decoded: Any = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
    return np.asarray(decoded)


def _rescale(image: Array, _: np.random.Generator) -> Array:
    height, width = image.shape[:2]
    small = cv2.resize(
        image, (round(0.75 * width), round(0.75 * height)), interpolation=cv2.INTER_AREA
    )
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC)


CHANGES: dict[str, Callable[[Array, np.random.Generator], Array]] = {
    "crop to 80%": _crop,
    "mirror": _mirror,
    "JPEG quality 30": _jpeg,
    "rescale": _rescale,
}


def _read(folder: Path, measures: ImageMeasures) -> tuple[pd.DataFrame, list[tuple[str, str, int]]]:
    """Measure all images and the planted ones; return path, change and original of each."""
    chosen: dict[str, Array] = {}

    def add(path: str, data: bytes, image: Array) -> None:
        measures.add(path, data, image)
        if zlib.crc32(data) % PLANTED == 0:
            chosen[path] = image.copy()

    config = config_files.build_config(str(folder))
    scanned = ingestion.scan(config, Path(".patchline").resolve(), on_image=add)
    rows = manifests.usable(scanned.manifest)
    places = {path: place for place, path in enumerate(rows["path"])}
    generator = np.random.default_rng(0)
    planted = []
    for number, path in enumerate(sorted(chosen)):
        change = list(CHANGES)[number % len(CHANGES)]
        image = CHANGES[change](chosen[path], generator)
        measures.add(f"planted/{number}", b"", image)
        planted.append((f"planted/{number}", change, places[path]))
    return rows, planted


def _pairs(thumbnails: Thumbnails) -> Pairs:
    found: Pairs = {}
    for pairs, values in matches(thumbnails):
        for one, other, value in zip(*pairs.tolist(), values.tolist(), strict=True):
            pair = min(one, other), max(one, other)
            found[pair] = max(value, found.get(pair, 0.0))
    return found


def _print_recall(rows: pd.DataFrame, planted: list[tuple[str, str, int]], pairs: Pairs) -> None:
    found = [(original, len(rows) + k) in pairs for k, (_, _, original) in enumerate(planted)]
    for change in CHANGES:
        own = [hit for hit, (_, made, _) in zip(found, planted, strict=True) if made == change]
        print(f"recall {change:<16} {np.mean(own):.2%} of {len(own):,}")
    print(f"recall {'together':<16} {np.mean(found):.2%} of {len(found):,}")


def _print_precision(
    rows: pd.DataFrame, planted: list[tuple[str, str, int]], pairs: Pairs, natural: Pairs
) -> None:
    """Print which pairs with a planted image are right."""
    count = len(rows)
    exact = content_numbers(rows)[0].to_numpy()
    _, first = np.unique(exact, return_index=True)
    edges = [*natural, *zip(range(count), first[exact].tolist(), strict=True)]
    ones, others = np.array(edges).T
    graph = coo_array((np.ones(len(ones), np.bool_), (ones, others)), shape=(count, count))
    _, groups = connected_components(graph, directed=False)
    origin = np.concatenate([np.arange(count), [original for _, _, original in planted]])
    with_planted = [pair for pair in pairs if max(pair) >= count]
    right = [groups[origin[one]] == groups[origin[other]] for one, other in with_planted]
    print(
        f"precision {np.mean(right):.2%}: {sum(right):,} of {len(right):,} pairs with a planted "
        "image"
    )


def _print_natural(rows: pd.DataFrame, natural: Pairs) -> None:
    splits, labels = rows["split"].to_numpy(), rows["label"].to_numpy()
    across = sum(splits[one] != splits[other] for one, other in natural)
    conflicts = sum(labels[one] != labels[other] for one, other in natural)
    images = len({row for pair in natural for row in pair})
    print(
        f"without planted images: {len(natural):,} pairs of {images:,} images, {across:,} pairs "
        f"across the given splits, {conflicts:,} with two labels"
    )


def _draw_sheet(thumbnails: Thumbnails, natural: Pairs, file: Path) -> None:
    """Draw a random sample of the data's own pairs, least similar first."""
    ordered = sorted(natural, key=lambda pair: natural[pair])
    places = np.sort(np.random.default_rng(0).permutation(len(ordered))[:_SHEET_PAIRS])
    cells = [np.hstack([_draw(thumbnails, row) for row in ordered[place]]) for place in places]
    cells += [np.zeros_like(cells[0])] * (-len(cells) % 10)
    rows = [np.hstack(cells[start : start + 10]) for start in range(0, len(cells), 10)]
    cv2.imwrite(str(file), np.vstack(rows))


def _draw(thumbnails: Thumbnails, row: int) -> Array:
    luma = thumbnails.luma_NHW[row]
    chroma = cv2.resize(thumbnails.chroma_NHWC[row], luma.shape[::-1])
    image = cv2.cvtColor(np.dstack([luma, chroma]), cv2.COLOR_YCrCb2BGR)
    return np.pad(cv2.resize(image, (_SHEET_SIDE,) * 2), ((1, 1), (1, 1), (0, 0)))


def _print_speed(thumbnails: Thumbnails, count: int) -> None:
    """Search among mixtures of two images each, which are as similar to each other as images."""
    generator = np.random.default_rng(0)
    luma = np.empty((count, *thumbnails.luma_NHW.shape[1:]), np.uint8)
    chroma = np.empty((count, *thumbnails.chroma_NHWC.shape[1:]), np.uint8)
    for start in range(0, count, 10_000):
        stop = min(count, start + 10_000)
        one, other = generator.integers(len(thumbnails.luma_NHW), size=(2, stop - start))
        for mixed, images in ((luma, thumbnails.luma_NHW), (chroma, thumbnails.chroma_NHWC)):
            mixed[start:stop] = images[one] // 2 + images[other] // 2
    began = time.perf_counter()
    processor = time.process_time()
    thumbnails = Thumbnails(luma, chroma)
    pairs = sum(found.shape[1] for found, _ in matches(thumbnails))
    print(
        f"{count:,} images searched in {time.perf_counter() - began:.0f} s "
        f"({time.process_time() - processor:.0f} s of processor time), {pairs:,} matches",
        flush=True,
    )
    new = np.arange(count - count // _SHARE_OF_NEW, count)
    began, processor = time.perf_counter(), time.process_time()
    pairs = sum(found.shape[1] for found, _ in matches(thumbnails, new=new))
    print(
        f"the last {len(new):,} of them as new ones in {time.perf_counter() - began:.0f} s "
        f"({time.process_time() - processor:.0f} s of processor time), {pairs:,} matches"
    )


if __name__ == "__main__":
    main()
