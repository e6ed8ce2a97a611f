"""Measure the false alarms and the power of `patchline monitor` on features of a real model.

    python -m benchmarks.monitoring features PACKAGE IMAGES FILE.npz
    python -m benchmarks.monitoring simulate FILE.npz [--streams 1000] [--checks 30] [--images 100]
        [--workers 2] [--kept STREAMS.jsonl]
    python -m benchmarks.monitoring bursts [--checks 400] [--images 100] [--level 0.05]

PACKAGE is the folder of a package with `model.onnx`; IMAGES holds a folder for each class, with
images that the model was not trained on, and may hold further classes. The first command computes
features and probabilities of these images, and of versions with noise, in the dark and blurred. The
second one draws streams from them.

Without drift, all streams share one reference, as the streams of a model do: 1,000 streams of 30
daily checks each, of images that the reference does not have. A stream counts if any of its checks
finds a drift. The same for other references shows how much that depends on the reference. With
drift, it counts the checks that find it.

The third command needs no files. It draws checks of near-identical images in bursts without drift,
and tests all images, and the independent ones as `patchline monitor` finds them; and single images
with drift.

A stream is the same, whichever process draws it. With `--kept`, a file keeps the streams that are
done, and a command that was stopped continues there.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measured_runs import machine
from patchline.pipeline.data.near_duplicates.search import (
    ComparedPictures,
    one_of_each,
)
from patchline.pipeline.evaluation.corruptions import corrupt
from patchline.pipeline.evaluation.metrics.intervals import proportion
from patchline.pipeline.models.reference_images import ReferenceImages, as_kept
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.plugins.tools.monitor.arrived_images import predict_images
from patchline.plugins.tools.monitor.check_journal import Period
from patchline.plugins.tools.monitor.drift_tests import (
    FeatureKernel,
    class_shares,
    distances,
    drift_tests,
)

Array = np.ndarray[Any, Any]
_DRIFTED, _BATCH, _TOGETHER = 1500, 100, 10
_LEVEL = 0.05
_BURSTS, _REFERENCE, _CLASSES = (1, 2, 5, 20), 500, 5
_STRENGTHS = {"noise": (1, 2, 3, 4), "darkness": (0.9, 0.8, 0.65, 0.5), "blur": (1, 2, 3, 4)}
_SHARES = (0.05, 0.1, 0.2, 0.4)
"""Of a new class; of the images that become those of a class that is there."""
_METHODS = ("this", "outputs alone", "features alone", "each check at 5%", "each output at 5%")


def main() -> None:
    """Compute features, or simulate streams or checks."""
    parser = argparse.ArgumentParser(description="False alarms and power of monitoring.")
    commands = parser.add_subparsers(dest="command", required=True)
    features = commands.add_parser("features")
    features.add_argument("package", type=Path)
    features.add_argument("images", type=Path)
    features.add_argument("file", type=Path)
    simulate = commands.add_parser("simulate")
    simulate.add_argument("file", type=Path)
    simulate.add_argument("--streams", type=int, default=1000)
    simulate.add_argument("--checks", type=int, default=30)
    simulate.add_argument("--images", type=int, default=100)
    simulate.add_argument("--reference", type=int, default=2000)
    simulate.add_argument("--references", type=int, default=8)
    simulate.add_argument("--drifted", type=int, default=100)
    simulate.add_argument("--workers", type=int, default=1)
    simulate.add_argument("--kept", type=Path)
    bursts = commands.add_parser("bursts")
    bursts.add_argument("--checks", type=int, default=400)
    bursts.add_argument("--images", type=int, default=100)
    bursts.add_argument("--level", type=float, default=_LEVEL)
    given = parser.parse_args()
    if given.command == "bursts":
        report_bursts(given.checks, given.images, given.level)
    elif given.command == "features":
        compute_features(given.package, given.images, given.file)
    else:
        report(given)


def compute_features(package_folder: Path, images: Path, file: Path) -> None:
    """Write features and probabilities of all images, and of drifted versions of some."""
    package = PackagedModel(package_folder / "model.onnx", package_folder / "model.json")
    names = sorted(each.name for each in images.iterdir() if each.is_dir())
    paths = [
        (place, path)
        for place, name in enumerate(names)
        for path in sorted((images / name).iterdir())
    ]
    order = np.random.default_rng(0).permutation(len(paths))
    paths = [paths[place] for place in order]
    pixels = np.stack([np.asarray(package.pixels(path)) for _, path in paths])
    known = np.array([names[place] in package.classes for place, _ in paths])
    stored = {"labels": np.array([place for place, _ in paths]), "is_known": known}
    _compute(package, pixels, "clean", stored)
    some = pixels[known][-_DRIFTED:]
    for kind, strengths in _STRENGTHS.items():
        for strength in strengths:
            versions = np.stack([_drift(each, kind, strength) for each in some])
            _compute(package, versions, f"{kind} {strength:g}", stored)
    np.savez(file, allow_pickle=False, **stored)
    print(f"{len(paths):,} images, {int(known.sum()):,} of classes of the model: {file}")


def _compute(
    package: PackagedModel, pixels_NHWC: Array, name: str, stored: dict[str, Array]
) -> None:
    parts = [
        predict_images(package, pixels_NHWC[start : start + _BATCH])
        for start in range(0, len(pixels_NHWC), _BATCH)
    ]
    stored[f"{name} probabilities"] = as_kept(np.concatenate([part[0] for part in parts]))
    stored[f"{name} features"] = as_kept(np.concatenate([part[1] for part in parts]))


def _drift(pixels_HWC: Array, kind: str, strength: float) -> Array:
    if kind == "darkness":
        darker: Array = np.rint(pixels_HWC * strength).astype(np.uint8)
        return darker
    name = {"noise": "gaussian_noise", "blur": "defocus_blur"}[kind]
    return corrupt(pixels_HWC, name, int(strength), seed=0)


@dataclass(frozen=True)
class Computed:
    """Probabilities (N, K) and features (N, D) of images."""

    probabilities_NK: Array
    features_ND: Array

    def of(self, rows: Array) -> Computed:
        """Return those of some images."""
        return Computed(self.probabilities_NK[rows], self.features_ND[rows])

    def __len__(self) -> int:
        """Return N."""
        return len(self.probabilities_NK)


class Monitor:
    """The tests of a version with one reference, and those that are not corrected.

    Args:
        reference: of the version.
        period: of the streams.
        images: of each check.
    """

    def __init__(self, reference: Computed, period: Period, images: int) -> None:
        from scipy.stats import kstwo

        self.reference = reference.probabilities_NK.astype(np.float64)
        self.sorted_MK = np.sort(self.reference, axis=0)
        self.kernel = FeatureKernel(reference.features_ND)
        self.period = period
        both = round(len(reference) * images / (len(reference) + images))
        self.surviving = kstwo(both).sf

    def alarms(self, check: Computed, seed: int) -> Array:
        """Return which of `_METHODS` find a drift."""
        from scipy.stats import ks_2samp

        outputs_NK = check.probabilities_NK.astype(np.float64)
        distances_K = distances(self.sorted_MK, outputs_NK)
        largest, count = int(np.argmax(distances_K)), len(distances_K)
        rough = float(self.surviving(distances_K[largest]))
        share = self.period.level / 2
        p_value = rough
        if rough * count < 20 * share:  # the exact one, as the command computes it
            p_value = float(ks_2samp(self.reference[:, largest], outputs_NK[:, largest]).pvalue)
        by_outputs = p_value * count <= share
        by_features = self.kernel.compare(check.features_ND, share, seed).p_value <= share
        return np.array(
            [
                by_outputs or by_features,
                by_outputs,
                by_features,
                rough * count <= _LEVEL,
                rough <= _LEVEL,
            ]
        )


def report(given: argparse.Namespace) -> None:
    """Print the tables."""
    with np.load(given.file, allow_pickle=False) as stored:
        arrays = dict(stored)
    clean = Computed(arrays["clean probabilities"], arrays["clean features"])
    known = np.flatnonzero(arrays["is_known"])
    period, began = Period(_LEVEL, given.checks), time.monotonic()
    print(machine())
    print(
        f"{given.streams:,} streams of {given.checks} checks of {given.images} images; reference "
        f"of {given.reference:,} images, {len(known) - given.reference:,} others; "
        f"{clean.features_ND.shape[1]} features\n"
    )
    print("| reference | " + " | ".join(_METHODS) + " |\n|" + "---|" * (len(_METHODS) + 1))
    for number in range(1 + given.references):
        streams = given.streams if number == 0 else max(1, given.streams // 10)
        monitor, pool = _monitor(clean, known, number, period, given)
        ever = _ever(monitor, clean.of(pool), streams, number, given)
        cells = [proportion(int(each), streams) for each in ever.sum(axis=0)]
        words = [f"{each.value:.1%} ({each.low:.1%} to {each.high:.1%})" for each in cells]
        print(f"| {number + 1}, {streams:,} streams | " + " | ".join(words) + " |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s\n")
    monitor, pool = _monitor(clean, known, 0, period, given)
    print("| drift | " + " | ".join(_METHODS) + " |\n|" + "---|" * (len(_METHODS) + 1))
    for name, draw in _drifts(arrays, clean, pool, given.images).items():
        generator = np.random.default_rng(7)
        found = np.array([monitor.alarms(draw(generator), seed) for seed in range(given.drifted)])
        shares = [f"{each:.0%}" for each in found.mean(axis=0)]
        print(f"| {name} | " + " | ".join(shares) + " |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


def _monitor(
    clean: Computed, known: Array, number: int, period: Period, given: argparse.Namespace
) -> tuple[Monitor, Array]:
    """Return the tests with a reference drawn from the images, and the rows of the others."""
    drawn = np.random.default_rng(100 + number).permutation(known)
    reference, pool = drawn[: given.reference], drawn[given.reference :]
    return Monitor(clean.of(reference), period, given.images), pool


def _ever(
    monitor: Monitor, others: Computed, streams: int, reference: int, given: argparse.Namespace
) -> Array:
    """Return whether any check of each stream finds a drift, by method.

    Args:
        monitor: the tests.
        others: images that the reference does not have.
        streams: to draw.
        reference: number of the reference.
        given: the options.
    """
    settings = [str(given.file), reference, given.checks, given.images, given.reference]
    ever = _read_kept(given.kept, settings)
    left = [stream for stream in range(streams) if stream not in ever]
    groups = [left[start : start + _TOGETHER] for start in range(0, len(left), _TOGETHER)]
    for stream, alarms in _draw_streams(monitor, others, groups, given):
        ever[stream] = alarms
        if given.kept is not None:
            with given.kept.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps([settings, stream, alarms]) + "\n")
        print(f"\r{len(ever):,} of {streams:,} streams", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return np.array([ever[stream] for stream in range(streams)])


def _read_kept(file: Path | None, settings: Sequence[object]) -> dict[int, list[bool]]:
    """Return the streams that a command with the same settings has drawn already."""
    if file is None or not file.exists():
        return {}
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {stream: alarms for known, stream, alarms in rows if known == settings}


def _draw_streams(
    monitor: Monitor, others: Computed, groups: Sequence[Sequence[int]], given: argparse.Namespace
) -> Iterator[tuple[int, list[bool]]]:
    """Yield each stream and what it finds, as they end."""
    with ProcessPoolExecutor(given.workers) as workers:
        drawing = [
            workers.submit(_streams, monitor, others, group, given.checks, given.images)
            for group in groups
        ]
        for done in as_completed(drawing):
            yield from done.result()


def _streams(
    monitor: Monitor, others: Computed, streams: Sequence[int], checks: int, images: int
) -> list[tuple[int, list[bool]]]:
    """Return some streams, and by which methods any of their checks finds a drift."""
    found = []
    for stream in streams:
        rows = np.random.default_rng(stream).permutation(len(others))[: checks * images]
        alarms = [
            monitor.alarms(others.of(each), stream * checks + place)
            for place, each in enumerate(rows.reshape(checks, images))
        ]
        found.append((stream, [bool(each) for each in np.any(alarms, axis=0)]))
    return found


class DrawnImages:
    """Images of five classes drawn at random, and a small classifier of them.

    A picture is the pattern of its class, which is fixed, and noise with the spectrum of natural
    images. Features are random projections of it; the outputs a logistic regression on these.
    """

    def __init__(self) -> None:
        from sklearn.linear_model import LogisticRegression

        self._generator = generator = np.random.default_rng(5)
        self._patterns = self._clouds(_CLASSES)
        self._weights = generator.normal(0, 1 / math.sqrt(192), (192, 64))
        self.labels = generator.integers(0, _CLASSES, 6000)
        self.pictures = np.clip(
            128 + 12 * self._patterns[self.labels] + 40 * self._clouds(6000), 0, 255
        ).astype(np.uint8)
        self._features = self._projected(self.pictures)
        self._head = LogisticRegression(max_iter=500).fit(self._features[:2000], self.labels[:2000])

    def _clouds(self, count: int) -> Array:
        """Return noise, standardized, whose amplitude falls with the frequency (N, 32, 32, 3)."""
        frequency = np.hypot(np.fft.fftfreq(32)[:, None], np.fft.fftfreq(32)[None])
        frequency[0, 0] = 1
        white = self._generator.normal(size=(count, 3, 32, 32))
        white[:, 1:] += 2 * white[:, :1]  # colours vary less than brightness
        clouds = np.real(np.fft.ifft2(np.fft.fft2(white) / frequency))
        clouds = clouds / clouds.std(axis=(1, 2, 3), keepdims=True)
        return np.asarray(clouds.transpose(0, 2, 3, 1))

    @staticmethod
    def _pooled(pictures_NHWC: Array) -> Array:
        blocks = pictures_NHWC.reshape(-1, 8, 4, 8, 4, 3).mean(axis=(2, 4))
        return np.asarray(blocks.reshape(len(blocks), -1) / 128 - 1)

    def _projected(self, pictures_NHWC: Array) -> Array:
        return np.asarray(np.tanh(2 * self._pooled(pictures_NHWC) @ self._weights))

    def computed(self, pictures_NHWC: Array) -> tuple[Array, Array]:
        """Return probabilities (N, K) and features (N, D)."""
        features_ND = self._projected(pictures_NHWC)
        return self._head.predict_proba(features_ND), features_ND

    def reference(self, rows: Array) -> ReferenceImages:
        """Return images as a version has them."""
        probabilities_MK, features_MD = self.computed(self.pictures[rows])
        return ReferenceImages(
            probabilities_MK=as_kept(probabilities_MK),
            features_MD=as_kept(features_MD),
            labels=self.labels[rows],
            is_test_M=np.ones(len(rows), bool),
            sha256=tuple(map(str, rows)),
            paths=tuple(map(str, rows)),
        )


def report_bursts(checks: int, images: int, level: float) -> None:
    """Print how often checks of bursts alarm without drift, and what is found with drift.

    Args:
        checks: of each row of a table.
        images: of a check.
        level: of a check.
    """
    drawn, began = DrawnImages(), time.monotonic()
    print(machine())
    print(f"{checks} checks of {images} images at a level of {level:g}")
    print(f"reference of {_REFERENCE} images, another one for each check\n")
    print("| images a burst | independent | alarms, all images | alarms, independent |")
    print("|---|---|---|---|")
    for size in _BURSTS:
        rows = [
            _burst_check(drawn, "no drift", size, images, level, seed) for seed in range(checks)
        ]
        independent = np.mean([row.independent for row in rows])
        print(
            f"| {size} | {independent:.1f} | {_share([row.of_all for row in rows])} | "
            f"{_share([row.of_independent for row in rows])} |",
            flush=True,
        )
    print("\n| drift, no bursts | found | said to be new shares of the classes alone |")
    print("|---|---|---|")
    for kind in ("shares", "darker", "both"):
        rows = [_burst_check(drawn, kind, 1, images, level, seed) for seed in range(checks // 4)]
        said = [row.explained for row in rows if row.of_independent]
        print(
            f"| {kind} | {_share([row.of_independent for row in rows])} | {_share(said)} |",
            flush=True,
        )
    print(f"\n{time.monotonic() - began:.0f} s")


class BurstCheck(NamedTuple):
    """What one check finds."""

    independent: int
    of_all: bool
    of_independent: bool
    explained: bool
    """New shares of the classes explain the drift."""


def _burst_check(
    drawn: DrawnImages, kind: str, size: int, images: int, level: float, seed: int
) -> BurstCheck:
    """Draw a reference and the images of a check, and compare them."""
    generator = np.random.default_rng(seed)
    order = 2000 + generator.permutation(len(drawn.labels) - 2000)  # the others fitted the head
    reference, others = drawn.reference(order[:_REFERENCE]), order[_REFERENCE:]
    if kind in ("shares", "both"):
        is_first = drawn.labels[others] == 0
        others = np.concatenate([others[is_first][: images // 2], others[~is_first]])
    scenes = drawn.pictures[others[: images // size]].astype(np.float64)
    if kind in ("darker", "both"):
        scenes = scenes * 0.8
    noise = generator.normal(0, 3, (size, *scenes.shape)) if size > 1 else np.zeros((1, 1, 1, 1, 1))
    pictures = np.clip((scenes + noise).reshape(-1, 32, 32, 3), 0, 255).astype(np.uint8)
    keys = [str(each) for each in generator.permutation(len(pictures))]
    compared = ComparedPictures()
    for key, picture in zip(keys, pictures, strict=True):
        compared.add(key, picture, (32, 32))
    places = one_of_each(compared.units(keys, [""] * len(keys)), keys)
    probabilities_NK, features_ND = drawn.computed(pictures)
    classes = [str(each) for each in range(_CLASSES)]

    def found(rows: Array) -> bool:
        outputs = probabilities_NK[rows], features_ND[rows]
        return drift_tests(reference, *outputs, level, seed=seed, classes=classes).drift

    alarm, explained = found(places), False
    if alarm:
        outputs = probabilities_NK[places], features_ND[places]
        explained = bool(class_shares(reference, *outputs, classes, seed=seed).explains)
    everything = np.arange(len(pictures))
    return BurstCheck(len(places), found(everything), alarm, explained)


def _share(found: Sequence[bool]) -> str:
    if not found:
        return "none"
    share = proportion(sum(found), len(found))
    return f"{share.value:.1%} ({share.low:.1%} to {share.high:.1%})"


Draw = Callable[[np.random.Generator], Computed]


def _drifts(arrays: dict[str, Array], clean: Computed, pool: Array, images: int) -> dict[str, Draw]:
    """Return a function for each drift that draws the images of a check."""
    drifts: dict[str, Draw] = {}

    def drawn(computed: Computed) -> Draw:
        return lambda generator: computed.of(generator.permutation(len(computed))[:images])

    for kind, strengths in _STRENGTHS.items():
        for strength in strengths:
            name = f"{kind} {strength:g}"
            drifts[name] = drawn(
                Computed(arrays[f"{name} probabilities"], arrays[f"{name} features"])
            )
    labels = arrays["labels"]
    others = {
        "a new class": np.flatnonzero(~arrays["is_known"]),
        "more of one class": pool[labels[pool] == labels[pool].min()],
    }

    def mixed(rows: Array, share: float) -> Draw:
        def draw(generator: np.random.Generator) -> Computed:
            new = round(share * images)
            return clean.of(
                np.concatenate(
                    [generator.permutation(rows)[:new], generator.permutation(pool)[: images - new]]
                )
            )

        return draw

    for name, rows in others.items():
        for share in _SHARES:
            if len(rows):
                drifts[f"{name}, {share:.0%}"] = mixed(rows, share)
    return drifts


if __name__ == "__main__":
    main()
