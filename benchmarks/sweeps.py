"""A search over settings, beside a random search and the plan alone, for equally many epochs.

    python -m benchmarks.sweeps IMAGES [--config FILE] [--epochs 9] [--trials 16] [--repetitions 5]

IMAGES is a folder of class folders; FILE has further settings. Each repetition has other seeds:

    sweep    trials of `patchline sweep`: the plan first, then the estimator's, with rungs
    random   whole fits of settings at random from the same space, until as many epochs are trained
    plan     the plan's settings once
    longer   the plan's settings for as many epochs as the search has trained

Both searches choose by the validation images; the settings that they choose are trained again with
a seed that no trial has had, and so are those of the plan. Only these fits are tested, on the same
images. The cost is counted in epochs, not in seconds, so other programs on the machine change
nothing. The fits are those of `patchline run`, in this process: MLflow and Prefect cost the same
for each trial, and are left out. It prints the mean test accuracies, and the mean differences with
their 95% t intervals over the repetitions.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from benchmarks.measured_runs import machine
from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.errors import RunError
from patchline.pipeline.evaluation.metrics.intervals import mean_of_repeats
from patchline.pipeline.models.stored_logits import logits_of
from patchline.pipeline.training.job import TrainingPart
from patchline.pipeline.training.loop import Training
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import EventWriter
from patchline.plugins.tools.sweep.config import rungs
from patchline.plugins.tools.sweep.search import score_of, settings_words
from patchline.plugins.tools.sweep.space import SearchSpace
from patchline.plugins.tools.sweep.study import (
    StudyIdentity,
    StudyOptions,
    TrialRecord,
    best_of,
    open_study,
)

_FAR = 1000
"""Added to the seed of the fits that are tested."""
_DIFFERENCES = (
    ("sweep", "random"),
    ("sweep", "plan"),
    ("sweep", "longer"),
    ("random", "plan"),
)


@dataclass(frozen=True)
class Images:
    """The images that all fits share, and the settings of the plan."""

    plan: RunConfig
    data: IngestedData
    prepared: PreparedData
    space: SearchSpace

    def fit(self, config: RunConfig, folder: Path, epochs: int | None = None) -> TrainResult:
        """Train in this process, to the end or up to an epoch; an earlier fit is continued."""
        folder.mkdir(parents=True, exist_ok=True)
        job = job_of(config, self.data, self.prepared, folder, "benchmark")
        job = job.model_copy(update={"part": TrainingPart(epochs=epochs)})
        return Training(job, EventWriter(folder / "events.jsonl")).run()

    def tested(self, config: RunConfig, folder: Path) -> float:
        """Return the test accuracy of a new fit with a seed of its own."""
        config = config.model_copy(update={"seed": config.seed + _FAR})
        best = self.fit(config, folder).best
        rows = manifests.usable(manifests.load(self.data.manifest_file))
        test_rows = np.flatnonzero(rows["split"] == "test")
        images = open_images(self.prepared.store)
        logits_NK = logits_of(best, images, test_rows, [torch.device("cpu")])
        named = np.array(self.data.classes)[logits_NK.argmax(axis=1)]
        return float((named == rows["label"].to_numpy()[test_rows]).mean())


@dataclass
class Search:
    """One search over the space: its trials, without servers."""

    images: Images
    plan: RunConfig
    folder: Path
    steps: tuple[int, ...]
    sampler: str
    records: list[TrialRecord] = field(default_factory=list)

    def run(self, trials: int, *, plan_first: bool) -> TrialRecord:
        """Train the trials, and return the best."""
        identity = StudyIdentity(
            name="benchmark",
            data_fingerprint=self.images.data.fingerprint,
            plan="",
            space=self.images.space,
            rungs=self.steps,
            parent_run_id="",
        )
        options = StudyOptions(
            owner="benchmark",
            storage=None,
            reduction=3,
            most_trials=trials,
            sampler="random" if self.sampler == "random" else "tpe",
            seed=self.plan.seed,
        )
        self.folder.mkdir(parents=True)
        study, _ = open_study(identity, self.folder, options)
        study.begin(self.images.space.plan_values(self.plan) if plan_first else None)
        while (trial := study.next()) is not None:
            settings = trial.record.settings
            config = self.images.space.resolved(self.plan, settings, self.images.data)
            folder = self.folder / f"{trial.record.number}"
            try:
                for epoch in self.steps[:-1]:
                    result = self.images.fit(config, folder, epoch)
                    if not trial.report(epoch, result.history[-1].compared[0], result.seconds):
                        trial.stop("rung")
                        break
                else:
                    result = self.images.fit(config, folder)
                    value, loss = score_of(result), result.best_validation_loss
                    trial.complete(value, loss, result.epochs, result.seconds)
            except RunError as error:
                trial.fail(str(error))
        self.records = study.records()
        best = best_of(self.records)
        if best is None:
            raise SystemExit("no trial was complete")
        return best

    @property
    def epochs(self) -> float:
        """Trained by all trials."""
        return sum(each.epochs for each in self.records)


def repetition(images: Images, seed: int, trials: int, folder: Path) -> dict[str, float]:
    """Return the test accuracy of each way, with other seeds than any other repetition."""
    plan = images.plan.model_copy(update={"seed": seed})
    whole = plan.training.epochs_without_limit
    search = Search(images, plan, folder / "sweep", rungs(whole, 3), "tpe")
    best = search.run(trials, plan_first=True)
    fits = max(1, round(search.epochs / whole))
    by_chance = Search(images, plan, folder / "random", (whole,), "random")
    best_by_chance = by_chance.run(fits, plan_first=False)
    training = plan.training.model_copy(update={"epochs": max(1, round(search.epochs))})
    ways = {
        "sweep": images.space.resolved(plan, best.settings, images.data),
        "random": images.space.resolved(plan, best_by_chance.settings, images.data),
        "plan": plan,
        "longer": plan.model_copy(update={"training": training}),
    }
    accuracies = {
        name: images.tested(config, folder / "tested" / name) for name, config in ways.items()
    }
    shown = ", ".join(f"{name} {value:.1%}" for name, value in accuracies.items())
    print(
        f"seed {seed}: {search.epochs:.0f} epochs in {trials} trials, {by_chance.epochs:.0f} in "
        f"{fits} at random; test accuracy {shown}; best: {settings_words(best.settings)}",
        flush=True,
    )
    return accuracies


def prepare_images(given: argparse.Namespace, workspace: Path) -> Images:
    """Read, split and decode the images."""
    length = {"training": {"epochs": given.epochs}}
    config = config_files.build_config(
        str(given.images), preset_name="none", file=given.config, flags=length
    )
    data = ingestion.ingest(config, workspace)
    config = ingestion.resolve(config, data)
    prepared = ingestion.prepare(config, data, workspace)
    return Images(config, data, prepared, SearchSpace.of({}, config))


def report(accuracies: Sequence[dict[str, float]]) -> None:
    """Print the means and the differences."""
    for name in accuracies[0]:
        mean = mean_of_repeats([each[name] for each in accuracies], (0.0, 1.0))
        print(f"{name:<8} {mean.value:.1%} ({mean.low:.1%} to {mean.high:.1%})")
    for name, other in _DIFFERENCES:
        each = [pair[name] - pair[other] for pair in accuracies]
        mean = mean_of_repeats(each, (-1.0, 1.0))
        print(
            f"{name} - {other}: {100 * mean.value:+.1f} points "
            f"({100 * mean.low:+.1f} to {100 * mean.high:+.1f})"
        )


def main() -> None:
    """Parse the arguments and compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("images", type=Path, help="folder of class folders")
    parser.add_argument("--config", type=Path, help="YAML file with further settings")
    parser.add_argument("--epochs", type=int, default=9, help="of a whole fit")
    parser.add_argument("--trials", type=int, default=16, help="of a search")
    parser.add_argument("--repetitions", type=int, default=5)
    given = parser.parse_args()
    began = time.monotonic()
    print(machine())
    with tempfile.TemporaryDirectory(prefix="patchline-sweeps-") as scratch:
        workspace = Path(scratch)
        images = prepare_images(given, workspace)
        print(f"images {images.data.counts}; whole fit {given.epochs} epochs")
        print({key: each.text() for key, each in images.space.dimensions.items()}, flush=True)
        results = [
            repetition(images, 10 * number, given.trials, workspace / f"repetition-{number}")
            for number in range(given.repetitions)
        ]
    report(results)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
