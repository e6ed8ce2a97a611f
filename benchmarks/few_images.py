"""A head on frozen features from few images, against scikit-learn's.

python -m benchmarks.few_images FOLDER WEIGHTS [--images 8] [--tests 2000] [--draws 5] [--keep DIR]
python -m benchmarks.few_images FOLDER WEIGHTS --classes daisy tulip --images 125 --tests 153
python -m benchmarks.few_images FOLDER WEIGHTS --images 0 --tests 0

FOLDER holds a folder for each class, or `train` and `test` (or `val`) with such folders, such as
CIFAR-10; WEIGHTS is a file of trained weights. With a given test split, the test images are the
same for every draw; otherwise each draw divides the same images into others for training and test.
Where a number is 0, all images of that split are used; all training images are one draw. All
features are kept in DIR, so a second command takes seconds. Both sides fit the same features: ours
as `training.trainable head` does, scikit-learn's LogisticRegression with its own C of 1, on raw and
on standardized features.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.frozen_networks import Array, Network, chosen_images, features, network_of
from benchmarks.measured_runs import machine
from pipeline import quiet_libraries
from pipeline.metrics.intervals import mean_of_repeats
from pipeline.probing.linear_fit import fit_head

_NO_ROWS = 0


class Draw(NamedTuple):
    """The features and labels of training and test images."""

    features_ND: Array
    labels_N: Array
    test_MD: Array
    tests_M: Array


def main() -> None:
    """Compute the features, fit each draw with both, and print the accuracies."""
    arguments = _arguments()
    quiet_libraries.apply()
    print(f"{machine()}; weights {arguments.weights.name}", flush=True)
    given_split = (arguments.folder / "train").is_dir()
    parent = arguments.folder / "train" if given_split else arguments.folder
    classes = arguments.classes or sorted(each.name for each in parent.iterdir() if each.is_dir())
    network = network_of(arguments.weights, len(classes), arguments.keep)
    draws = (_given_split if given_split else _divided)(arguments, network, classes)
    ours, theirs_raw, theirs_standardized = [], [], []
    for number, draw in enumerate(draws):
        accuracy, seconds, chosen = _ours(draw, len(classes))
        raw, standardized = _theirs(draw)
        ours.append(accuracy)
        theirs_raw.append(raw)
        theirs_standardized.append(standardized)
        print(
            f"draw {number}: {len(draw.labels_N)} training and {len(draw.tests_M)} test images: "
            f"Patchline {accuracy:.1%} (C {chosen:g}, {seconds:.1f} s), "
            f"scikit-learn {raw:.1%} raw, {standardized:.1%} standardized",
            flush=True,
        )
    if not arguments.images:
        return
    sides = {
        "Patchline": ours,
        "scikit-learn, raw": theirs_raw,
        "scikit-learn, standardized": theirs_standardized,
    }
    for name, found in sides.items():
        mean = mean_of_repeats(found, (0.0, 1.0))
        print(f"{name}: {mean.value:.1%} (95% t interval {mean.low:.1%} to {mean.high:.1%})")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--classes", nargs="+", help="names of the folders; all if not given")
    parser.add_argument("--images", type=int, default=8, help="of each class, for training")
    parser.add_argument("--tests", type=int, default=2000, help="images for testing")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--keep", type=Path, default=Path("few_images"))
    return parser.parse_args()


def _given_split(
    arguments: argparse.Namespace, network: Network, classes: list[str]
) -> Iterator[Draw]:
    """Draw training images from one split; the test images are those of the other."""
    train, test = arguments.folder / "train", arguments.folder / "test"
    test = test if test.is_dir() else arguments.folder / "val"
    each = arguments.tests // len(classes)
    tests = chosen_images(test, classes, [each] * len(classes) if each else _all(test, classes), 0)
    test_MD = features(network, tests, len(classes), arguments.keep / "tests")
    counts = [arguments.images] * len(classes) if arguments.images else _all(train, classes)
    for seed in range(arguments.draws if arguments.images else 1):
        draw = chosen_images(train, classes, counts, seed)
        features_ND = features(network, draw, len(classes), arguments.keep / f"draw-{seed}")
        yield Draw(features_ND, draw.labels_N, test_MD, tests.labels_N)


def _all(folder: Path, classes: list[str]) -> list[int]:
    return [sum(1 for _ in (folder / name).iterdir()) for name in classes]


def _divided(arguments: argparse.Namespace, network: Network, classes: list[str]) -> Iterator[Draw]:
    """Divide the same images of each class in another way for each draw."""
    share, more = divmod(arguments.tests, len(classes))
    counts = [arguments.images + share + (label < more) for label in range(len(classes))]
    images = chosen_images(arguments.folder, classes, counts, 0)
    folder = arguments.keep / f"divided-{'-'.join(classes)}-{len(images.files)}"
    features_ND = features(network, images, len(classes), folder)
    for seed in range(arguments.draws):
        order = np.random.default_rng(seed).permutation(len(images.files))
        labels = images.labels_N[order]
        first = [order[labels == label][: arguments.images] for label in range(len(classes))]
        training = np.concatenate(first)
        tests = np.setdiff1d(order, training)
        yield Draw(
            *(features_ND[training], images.labels_N[training]),
            *(features_ND[tests], images.labels_N[tests]),
        )


def _ours(draw: Draw, classes: int) -> tuple[float, float, float]:
    began = time.monotonic()
    nothing = draw.features_ND[:_NO_ROWS], draw.labels_N[:_NO_ROWS]
    fitted = fit_head(draw.features_ND, draw.labels_N, *nothing, classes)
    seconds = time.monotonic() - began
    answers_M = (draw.test_MD @ fitted.weight_KD.T + fitted.bias_K).argmax(1)
    return float((answers_M == draw.tests_M).mean()), seconds, fitted.regularization


def _theirs(draw: Draw) -> tuple[float, float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    raw = LogisticRegression(max_iter=5000)
    standardized = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    scores = [
        float(each.fit(draw.features_ND, draw.labels_N).score(draw.test_MD, draw.tests_M))
        for each in (raw, standardized)
    ]
    return scores[0], scores[1]


if __name__ == "__main__":
    main()
