"""Compare warm starts with training from random weights, after some more images have come.

    python -m benchmarks.warm_starts DATA [--images 5000] [--more 500] [--seeds 5]
                                          [--tests 3000] [--preset quick]
                                          [--also "SETTING=VALUE..."]... [SETTING=VALUE...]

DATA holds train/ and test/ with one folder of images for each class, such as CIFAR-10. For each
seed, three models are trained by `patchline run` with its own plans: a first one on the images from
random weights, which becomes the champion; then on the images and some more, again from random
weights, and from the champion. All are tested on the same images, which no training sees. Settings
such as model.embed_dim=64 are those of all runs from random weights; with --also, settings such as
optimizer.learning_rate=0.0005 add further warm starts from the same champions.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measured_runs import machine, measured_run
from patchline.pipeline.metrics.intervals import mean_of_repeats

_SHORT = ("--evaluation.explanations=false",)
"""What needs no time here."""


@dataclass(frozen=True)
class Trained:
    """What a run has reached."""

    accuracy: float
    """On the test images."""
    steps: int
    batch_size: int
    seconds: float
    """Of the training."""

    @property
    def images(self) -> int:
        """Images that the training has seen, with repetition."""
        return self.steps * self.batch_size

    def __str__(self) -> str:
        """Return it in a few words."""
        return (
            f"{self.accuracy:.1%} after {self.steps} steps of {self.batch_size} "
            f"({self.seconds:.0f} s)"
        )


def linked(data: Path, folder: Path, training: int, tests: int) -> Path:
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


def trained(folder: Path, data: Path, name: str, seed: int, *more: str) -> Trained:
    """Train a model of a name in a folder by `patchline run`."""
    summary = measured_run(
        str(data), "--name", name, "--seed", str(seed), *_SHORT, *more, folder=folder
    )
    training: dict[str, Any] = summary["training"]
    return Trained(
        accuracy=summary["metrics"]["test/accuracy"]["value"],
        steps=training["steps"],
        batch_size=_batch_size(Path(summary["config"])),
        seconds=training["seconds"],
    )


def _batch_size(config: Path) -> int:
    import yaml

    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    return int(settings["training"]["batch_size"])


def compared(
    folder: Path, earlier: Path, everything: Path, seed: int, given: argparse.Namespace
) -> dict[str, Trained]:
    """Return the champion, the run from random weights, and the warm starts of a seed."""
    preset = ("--preset", given.preset)
    cold = (*preset, *_flags(given.settings))
    runs = {"champion": trained(folder, earlier, f"first-{seed}", seed, *cold)}
    runs["cold"] = trained(folder, everything, f"cold-{seed}", seed + 1000, *cold)
    for number, also in enumerate(("", *given.also)):
        name = f"warm-{seed}-{number}"
        start = ("--model.init", f"first-{seed}@champion", *preset, *_flags(also.split()))
        runs[f"warm {also}".strip()] = trained(folder, everything, name, seed + 2000, *start)
    print(f"seed {seed}: {'; '.join(f'{key} {run}' for key, run in runs.items())}", flush=True)
    return runs


def _flags(settings: list[str]) -> list[str]:
    return [f"--{each.replace('_', '-')}" for each in settings]


def summary(name: str, runs: list[dict[str, Trained]]) -> str:
    """Return how some warm starts compare with the runs from random weights."""
    warms, colds = [each[name] for each in runs], [each["cold"] for each in runs]
    pairs = list(zip(warms, colds, strict=True))
    steps = np.mean([warm.steps / cold.steps for warm, cold in pairs])
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
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tests", type=int, default=3_000)
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--also", action="append", default=[], metavar="SETTINGS")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    given = parser.parse_intermixed_args()
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        folder, data = Path(name) / "workspace", given.data.resolve()
        folder.mkdir()
        earlier = linked(data, Path(name) / "earlier", given.images, given.tests)
        everything = linked(data, Path(name) / "all", given.images + given.more, given.tests)
        runs = [compared(folder, earlier, everything, seed, given) for seed in range(given.seeds)]
    for name in ("champion", "cold"):
        print(f"{name}: {np.mean([each[name].accuracy for each in runs]):.1%}")
    for name in list(runs[0])[2:]:
        print(summary(name, runs))


if __name__ == "__main__":
    main()
