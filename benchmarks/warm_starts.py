"""Compare warm starts with training from random weights, after some more images have come.

    python -m benchmarks.warm_starts DATA [--images 5000] [--more 500] [--tests 3000] [--seeds 5]
                                          [--first 0] [--epochs 24] [--preset quick]
                                          [--precision bfloat16]
                                          [--also "SETTING=VALUE..."]... [SETTING=VALUE...]

DATA holds train/ and test/ with one folder of images for each class, such as CIFAR-10. For each
seed, three models are trained with the plans of a preset: a first one on the images from random
weights, the champion; then on the images and some more, for the epochs again from random weights,
and for a third of them from the champion. All are tested on the same images, which no training has.
Settings such as model.embed_dim=64 are those of all runs from random weights; with --also, settings
such as optimizer.learning_rate=0.0005 add further warm starts from the same champions.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured_runs import machine
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.store.prepared_store import open_images
from patchline.pipeline.evaluation.metrics.intervals import mean_of_repeats
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.facts import Plan
from patchline.pipeline.training.initial_weights import finding, recipe
from patchline.pipeline.training.initial_weights.starting_point import with_initial_weights
from patchline.pipeline.training.job import TRAINING
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.training.train_result import TrainResult

CHAMPION = "first@champion"


@dataclass(frozen=True)
class Trained:
    """What a training run has reached."""

    accuracy: float
    """On the test images."""
    result: TrainResult
    images: int
    """That the training has seen, with repetition."""

    def __str__(self) -> str:
        """Return it in a few words."""
        return f"{self.accuracy:.1%} after {self.result.steps} steps"


@dataclass(frozen=True)
class Kind:
    """A kind of training run, which is planned once."""

    name: str
    images: Path
    epochs: int
    settings: dict[str, Any]


class Comparison:
    """Trains in a folder, and plans each kind of training once.

    Args:
        folder: for everything that is trained.
        given: as on the command line.
    """

    def __init__(self, folder: Path, given: argparse.Namespace) -> None:
        self.folder, self.given = folder, given
        source = given.data.resolve()
        self.earlier = link_images(source, folder / "earlier", given.images, given.tests)
        self.everything = link_images(
            source, folder / "all", given.images + given.more, given.tests
        )
        self._plans: dict[str, Plan] = {}

    def of_seed(self, seed: int) -> dict[str, Trained]:
        """Train and return the champion, the run from random weights, and the warm starts."""
        epochs, cold = self.given.epochs, nest(self.given.settings)
        first = self.trained(Kind("champion", self.earlier, epochs, cold), seed)
        again = self.trained(Kind("cold", self.everything, epochs, cold), seed + 1000)
        runs = {"champion": first, "cold": again}
        shorter = int(epochs * recipe.WARM_SHARE)
        for also in ("", *self.given.also):
            settings, name = nest(also.split()), f"warm {also}".strip()
            kind = Kind(name, self.everything, shorter, settings)
            runs[name] = self.trained(kind, seed + 2000, first.result.best)
        print(
            f"seed {seed}: {'; '.join(f'{name} {run}' for name, run in runs.items())}", flush=True
        )
        return runs

    def trained(self, kind: Kind, seed: int, start: Path | None = None) -> Trained:
        """Train as `patchline run` does, and test on the test images.

        Args:
            kind: of the run.
            seed: of the run.
            start: folder of the champion's weights; None for random ones.
        """
        name = kind.name
        workspace = self.folder / "workspace"
        length = {"seed": seed, "training": {"epochs": kind.epochs}}
        same = {"training": {"precision": self.given.precision, "threads": 1}}
        flags = config_files.merge_settings(
            config_files.merge_settings(same, kind.settings), length
        )
        if start:
            flags = config_files.merge_settings(flags, {"model": {"init": CHAMPION}})
        config = config_files.build_config(
            str(kind.images), preset_name=self.given.preset, flags=flags
        )
        data = ingestion.ingest(config, workspace)
        if start:
            config = _from_champion(config, start, workspace, data.classes)
        if name not in self._plans:
            self._plans[name] = planner.plan_run(config, data, workspace, print)
            print(f"{name}: {self._plans[name].summary[1]}", flush=True)
        config = ingestion.resolve(planner.with_plan(config, self._plans[name]), data)
        prepared = ingestion.prepare(config, data, workspace)
        folder = self.folder / f"{name.replace(' ', '-').replace('/', '-')}-{seed}"
        job = job_of(config, data, prepared, folder, "benchmark", workspace)
        result = TRAINING.run(folder, job)
        rows = manifests.usable(manifests.load(data.manifest_file))
        tests = np.flatnonzero(rows["split"] == "test")
        stored = open_images(prepared.store)
        logits_NK = predict_logits(load_model(result.best)[0], stored, tests, prepared.image)
        answers = np.array(data.classes)[logits_NK.argmax(1).numpy()]
        accuracy = float((answers == rows["label"].to_numpy()[tests]).mean())
        return Trained(accuracy, result, result.steps * config.training.batch_size)


def _from_champion(
    config: RunConfig, start: Path, workspace: Path, classes: tuple[str, ...]
) -> RunConfig:
    """Return the config with a file of weights, as if it were that of the registered champion."""
    weights = finding.find(str(start / "model.safetensors"), workspace, "first")
    if weights is None:
        raise SystemExit(f"{start} holds no weights.")
    registered = weights.model_copy(update={"kind": "version", "reference": CHAMPION})
    return with_initial_weights(config, registered, classes)


def link_images(data: Path, folder: Path, training: int, tests: int) -> Path:
    """Return a folder with links to the first images of each class, so many in all classes."""
    for split, images in (("train", training), ("test", tests)):
        classes = sorted(each for each in (data / split).iterdir() if each.is_dir())
        for label in classes:
            own = folder / split / label.name
            own.mkdir(parents=True)
            for file in sorted(label.iterdir())[: images // len(classes)]:
                _link(file, own / file.name)
    return folder


def _link(file: Path, link: Path) -> None:
    try:
        os.link(file, link)
    except OSError:  # on another disk
        link.symlink_to(file)


def nest(settings: list[str]) -> dict[str, Any]:
    """Return settings such as `model.embed_dim=64` as nested ones."""
    import yaml

    changes: dict[str, Any] = {}
    for key, _, value in (each.partition("=") for each in settings):
        setting: Any = yaml.safe_load(value)
        for part in reversed(key.split(".")):
            setting = {part: setting}
        changes = config_files.merge_settings(changes, setting)
    return changes


def summary(name: str, runs: list[dict[str, Trained]]) -> str:
    """Return how some warm starts compare with the runs from random weights."""
    warms, colds = [each[name] for each in runs], [each["cold"] for each in runs]
    pairs = list(zip(warms, colds, strict=True))
    steps = np.mean([warm.result.steps / cold.result.steps for warm, cold in pairs])
    images = np.mean([warm.images / cold.images for warm, cold in pairs])
    gain = mean_of_repeats([warm.accuracy - cold.accuracy for warm, cold in pairs], (-1.0, 1.0))
    return (
        f"{name}: {np.mean([each.accuracy for each in warms]):.1%}, {100 * gain.value:+.1f} points "
        f"(95% t interval {100 * gain.low:+.1f} to {100 * gain.high:+.1f}, {len(pairs)} seeds) in "
        f"{steps:.2f} of the steps, {images:.2f} of the images"
    )


def main() -> None:
    """Train all models, and print the means."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--images", type=int, default=5_000)
    parser.add_argument("--more", type=int, default=500)
    parser.add_argument("--tests", type=int, default=3_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed")
    parser.add_argument("--epochs", type=int, default=24, help="from random weights")
    parser.add_argument("--precision", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--also", action="append", default=[], metavar="SETTINGS")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    given = parser.parse_intermixed_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        comparison = Comparison(Path(name), given)
        seeds = range(given.first, given.first + given.seeds)
        runs = [comparison.of_seed(seed) for seed in seeds]
    for name in ("champion", "cold"):
        print(f"{name}: {np.mean([each[name].accuracy for each in runs]):.1%}")
    for name in list(runs[0])[2:]:
        print(summary(name, runs))


if __name__ == "__main__":
    main()
