"""How often the interval of a forecast from half of the labels holds the accuracy with all of them.

    python -m benchmarks.forecast digits [--splits 40]
    python -m benchmarks.forecast simulated [--splits 400]
    python -m benchmarks.forecast images FOLDER [--init WEIGHTS] [--labels 2000 8000] [--splits 40]

`digits` are the built-in ones, `images` those of class folders. With WEIGHTS, a head on frozen
features is fitted, else the model that the preset `quick` plans is trained from random weights. A
YAML file with further settings is given by `--config`.

Half of the images are labels to draw from, the other half are tests. Each split draws other ones:
as many labels as are between both numbers, and test images. A forecast from shares of half of the
labels is compared with the accuracy of a fit on all of them, measured on all tests, of which the
forecast had a part.

`simulated` draws errors from power laws with an offset, for which the truth is certain.

It prints how many of the intervals hold the truth, of all and of those that are told (a forecast
may say "too few to tell"), their width beside that of the accuracy on the same test images with
half of the labels, and how far the forecasts are from the truth.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.measured_runs import machine
from benchmarks.results import Value, record
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate, proportion
from patchline.pipeline.stages.stage import Context
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.workers.event_log import EventWriter
from patchline.plugins.tools.forecast.fitting import DRAWS, SHARES, Fit, FittingJob, ShareFits
from patchline.plugins.tools.forecast.forecasting import (
    Learner,
    Measured,
    build_config,
    prepare_learner,
)
from patchline.plugins.tools.forecast.learning_curve import MeasuredFits, fit_learning_curve

Array = np.ndarray[Any, Any]
_VALIDATION = 0.15
"""Validation images, as a share of the labels."""
_OWN_NOISE = 0.3
"""How much a fit's own draw decides which test images are difficult, beside what all share."""


class Outcome(NamedTuple):
    """One forecast and the truth."""

    forecast: MetricEstimate
    now: MetricEstimate
    """The accuracy with half of the labels."""
    told: bool
    truth: float

    @property
    def holds(self) -> bool:
        """Whether the interval holds the truth."""
        return self.forecast.low <= self.truth <= self.forecast.high

    def __str__(self) -> str:
        now, then = self.now.value, self.forecast
        told = "" if self.told else ", not told"
        return f"{now:.1%}: {then.low:.1%} to {then.high:.1%}, truth {self.truth:.1%}{told}"


def outcome_of(fits: MeasuredFits, labels: int, truth: float, seed: int) -> Outcome:
    """Return the outcome of a forecast."""
    curve, now = fit_learning_curve(fits, seed), fits.accuracy(int(fits.sizes_S[-1]))
    return Outcome(curve.accuracy(labels), now, curve.can_tell(labels), truth)


@dataclass(frozen=True)
class Images:
    """The images of all splits, and the learner."""

    context: Context
    learner: Learner
    rows: pd.DataFrame

    @classmethod
    def of(cls, data: str | None, file: Path | None, init: str | None, folder: Path) -> Images:
        """Read the images, and plan the learner in a folder."""
        flags = {"model": {"init": init}} if init else {}
        context, learner = prepare_learner(build_config(data, None, file, flags), folder)
        rows = manifests.usable(manifests.load(context.get(IngestedData).manifest_file))
        return cls(context, learner, rows)

    def outcomes(self, splits: int, labels: Sequence[int], tests: int) -> Iterator[Outcome]:
        """Yield the outcome of each split."""
        for split in range(splits):
            generator = np.random.default_rng(split)
            pool, tested = np.array_split(generator.permutation(len(self.rows)), 2)
            most = min(labels[1], int(len(pool) / (1 + _VALIDATION)))
            count = int(generator.integers(min(labels[0], most), most + 1))
            train, validation = pool[:count], pool[count : count + int(_VALIDATION * count)]
            with tempfile.TemporaryDirectory(dir=self.context.workspace) as scratch:
                few = (train[: count // 2], validation, tested[:tests])
                half = self._fits(split, few, Path(scratch) / "half")
                data = self._data(half.job.training.manifest_file)
                measured = Measured.of(half.run(), data, split)
                whole = self._fits(split, (train, validation, tested), Path(scratch) / "whole")
                predicted = whole.predictor()(Fit(len(SHARES) - 1, DRAWS), np.sort(train))
            named = np.array(data.classes, dtype=object)[predicted]
            right = named == whole.rows["label"].to_numpy(object)[np.sort(tested)]
            yield outcome_of(measured.fits, count, float(right.mean()), split)

    def _data(self, file: Path) -> IngestedData:
        return self.context.get(IngestedData).model_copy(update={"manifest_file": file})

    def _fits(self, seed: int, parts: tuple[Array, Array, Array], folder: Path) -> ShareFits:
        """Return the fits of the learner with some training, validation and test images."""
        split = pd.Series("left out", index=self.rows.index, dtype=object)
        for name, part in zip(("train", "validation", "test"), parts, strict=True):
            split.iloc[part] = name
        rows, file = self.rows.assign(split=split), folder / "images.parquet"
        manifests.save(rows, file)
        config = self.learner.config.model_copy(update={"seed": seed})
        prepared, workspace = self.context.get(PreparedData), self.context.workspace
        job = job_of(config, self._data(file), prepared, folder, "benchmark", workspace)
        fitting = FittingJob(training=job, only_head=self.learner.only_head)
        return ShareFits(fitting, EventWriter(folder / "events.jsonl"), rows)


def simulate(splits: int, seed: int = 0) -> Iterator[Outcome]:
    """Yield outcomes for errors that follow power laws with an offset.

    Each test image has a difficulty, and a fit is wrong about those that are more difficult than
    what it has learned. What a draw has learned differs from the curve: of a share r of the same
    images, with the variance of all of them divided by r.
    """
    generator = np.random.default_rng(seed)
    sums = np.sort(generator.random(100_000) + _OWN_NOISE * generator.random(100_000))
    for _ in range(splits):
        slope, exponent = generator.uniform(0.03, 0.25), generator.uniform(0.15, 0.7)
        offset, deviation = generator.uniform(0.0, 0.2), generator.uniform(0.0, 0.006)
        tests, labels = int(generator.integers(300, 2000)), int(generator.integers(500, 8000))
        of_all = generator.normal()
        shared_N, sizes, wrong = generator.random(tests), [], []
        for share in SHARES:
            for _ in range(DRAWS if share < 1 else 1):
                own = of_all + math.sqrt(1 / share - 1) * generator.normal()
                error = slope * share**-exponent + offset + deviation * own
                limit = np.quantile(sums, np.clip(1 - error, 0, 1))
                wrong.append(shared_N + _OWN_NOISE * generator.random(tests) > limit)
                sizes.append(int(labels * share))
        fits = MeasuredFits(np.array(sizes), np.array(wrong))
        own = (of_all + generator.normal()) / 2
        error = slope * 2**-exponent + offset + deviation * own
        yield outcome_of(fits, 2 * fits.sizes_F.max(), 1 - error, int(generator.integers(2**31)))


def describe(outcomes: Sequence[Outcome]) -> Iterator[Value]:
    """Yield what the forecasts have shown."""
    told = [each for each in outcomes if each.told]
    for words, chosen in (("", outcomes), (", of those told", told)):
        held = proportion(sum(each.holds for each in chosen), len(chosen))
        yield Value.of_metric(f"intervals that hold the truth{words}", held.model_dump())
    widths = [each.forecast.high - each.forecast.low for each in outcomes]
    before = [each.now.high - each.now.low for each in outcomes]
    ratios = np.array(widths) / np.array(before)
    errors = [100 * (each.forecast.value - each.truth) for each in outcomes]
    yield Value.median("width of the interval", [100 * width for width in widths], "points")
    yield Value.median("width beside that of the test accuracy", ratios.tolist(), "times")
    yield Value.median("forecast minus truth", errors, "points")


def main() -> None:
    """Forecast, compare, and leave a record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, splits, tests in (("digits", 40, 300), ("simulated", 400, 0), ("images", 40, 1000)):
        command = kinds.add_parser(kind)
        command.add_argument("--splits", type=int, default=splits)
        command.add_argument("--tests", type=int, default=tests)
        command.add_argument("--config", type=Path)
        command.set_defaults(folder=None, init=None, labels=(400, 800))
    command.add_argument("folder", type=Path)
    command.add_argument("--init")
    command.add_argument("--labels", type=int, nargs=2, default=(2000, 8000))
    given = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        if given.kind == "simulated":
            results = simulate(given.splits)
        else:
            data = str(given.folder.resolve()) if given.folder else None
            images = Images.of(data, given.config, given.init, Path(folder).resolve())
            print(f"{len(images.rows):,} images; {images.learner.words}", flush=True)
            results = images.outcomes(given.splits, given.labels, given.tests)
        outcomes = []
        for each in results:
            outcomes.append(each)
            print(each, flush=True)
    values = list(describe(outcomes))
    for value in values:
        print(f"{value.name}: {value.value:.4g} {value.unit} ({value.low:.4g} to {value.high:.4g})")
    record(f"forecast_{'frozen' if given.init else given.kind}", *values)


if __name__ == "__main__":
    main()
