"""A head on frozen features from a few images of each class, against scikit-learn's.

python -m benchmarks.few_images FOLDER WEIGHTS [--images 8] [--tests 2000] [--draws 5] [--keep DIR]

FOLDER holds `train` and `test` with a folder for each class, such as CIFAR-10; WEIGHTS is a file of
trained weights. The test images are the same for every draw, and all features are kept in DIR, so a
second command takes seconds. Both sides fit the same features: ours as `training.trainable head`
does, scikit-learn's LogisticRegression with its own C of 1, on raw and on standardized features.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.measured_runs import machine
from pipeline import config_files, quiet_libraries
from pipeline.data.decoding import decode_image, resize_image
from pipeline.initial_weights.loading import load_into
from pipeline.initial_weights.record import InitialWeights, kept_folder
from pipeline.initial_weights.stage import starting_point
from pipeline.metrics.intervals import mean_of_repeats
from pipeline.models.model_building import build_model
from pipeline.plugin_api import DataTraits, ImageSpec
from pipeline.plugin_system.plugin_settings import resolve_settings
from pipeline.probing.features import features_of
from pipeline.probing.linear_fit import fit_head
from pipeline.probing.linear_head import linear_head

Array = np.ndarray[Any, Any]
_NO_ROWS = 0


class Images(NamedTuple):
    """Files with their classes."""

    files: list[Path]
    labels_N: Array


class Network(NamedTuple):
    """A model with trained weights, and what its images are like."""

    model: nn.Module
    image: ImageSpec
    sha256: str


def main() -> None:
    """Compute the features, fit each draw with both, and print the accuracies."""
    arguments = _arguments()
    quiet_libraries.apply()
    print(f"{machine()}; weights {arguments.weights.name}", flush=True)
    classes = sorted(each.name for each in (arguments.folder / "train").iterdir())
    network = _network(arguments.weights, len(classes), arguments.keep)
    tests = _chosen(arguments.folder / "test", classes, arguments.tests // len(classes), 0)
    draws = [
        _chosen(arguments.folder / "train", classes, arguments.images, seed)
        for seed in range(arguments.draws)
    ]
    test_features = _features(network, tests, classes, arguments.keep / "tests")
    ours, theirs = [], []
    for number, draw in enumerate(draws):
        features = _features(network, draw, classes, arguments.keep / f"draw-{number}")
        sides = (features, draw.labels_N, test_features, tests.labels_N)
        accuracy, seconds, chosen = _ours(*sides, len(classes))
        raw, standardized = _theirs(*sides)
        ours.append(accuracy)
        theirs.append(max(raw, standardized))
        print(
            f"draw {number}: Patchline {accuracy:.1%} (C {chosen:g}, {seconds:.1f} s), "
            f"scikit-learn {raw:.1%} raw, {standardized:.1%} standardized",
            flush=True,
        )
    for name, found in (("Patchline", ours), ("scikit-learn, the better", theirs)):
        mean = mean_of_repeats(found, (0.0, 1.0))
        print(f"{name}: {mean.value:.1%} (95% t interval {mean.low:.1%} to {mean.high:.1%})")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--images", type=int, default=8, help="training images of each class")
    parser.add_argument("--tests", type=int, default=2000, help="test images of all classes")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--keep", type=Path, default=Path("few_images"))
    return parser.parse_args()


def _network(file: Path, num_classes: int, folder: Path) -> Network:
    config = config_files.requested(None, flags={"model": {"init": str(file)}})
    start = starting_point(config, "few", folder.resolve())
    if not isinstance(start.weights, InitialWeights):
        raise TypeError(f"{file} holds no weights")
    data, found = start.config.data, start.weights
    size, channels = data.image_size or 0, data.channels or 3
    traits = DataTraits(channels, size, size, num_classes, mirror_symmetric=True)
    choice = resolve_settings(start.config, traits).model
    image = ImageSpec(
        channels=channels,
        height=size,
        width=size,
        mean=data.mean or (),
        std=data.std or (),
        resize="crop",
    )
    model = build_model(choice, image, num_classes)
    load_into(model, found, kept_folder(folder.resolve(), found.sha256), ())
    return Network(model.eval(), image, found.sha256)


def _chosen(folder: Path, classes: list[str], each: int, seed: int) -> Images:
    """Return some images of each class, the same for the same seed."""
    random, files, labels = np.random.default_rng(seed), [], []
    for label, name in enumerate(classes):
        there = sorted((folder / name).iterdir())
        files += [there[position] for position in random.permutation(len(there))[:each]]
        labels += [label] * each
    return Images(files, np.array(labels))


def _features(network: Network, images: Images, classes: list[str], folder: Path) -> Array:
    """Return the features of the images, computed once."""
    spec = network.image
    pixels = np.stack(
        [
            resize_image(
                decode_image(file.read_bytes(), spec.channels), spec.height, spec.width, "crop"
            )
            for file in images.files
        ]
    )
    began = time.monotonic()
    features = features_of(
        network.model,
        linear_head(network.model, len(classes)),
        pixels,
        np.arange(len(pixels)),
        spec,
        folder / network.sha256[:16],
        device=torch.device("cpu"),
        precision="float32",
    )
    seconds = time.monotonic() - began
    print(f"{len(pixels)} features in {seconds:.0f} s, {len(pixels) / seconds:.1f}/s", flush=True)
    return np.asarray(features)


def _ours(
    features_ND: Array, labels_N: Array, test_MD: Array, tests_M: Array, classes: int
) -> tuple[float, float, float]:
    began = time.monotonic()
    nothing = features_ND[:_NO_ROWS], labels_N[:_NO_ROWS]
    fitted = fit_head(features_ND, labels_N, *nothing, classes)
    seconds = time.monotonic() - began
    answers_M = (test_MD @ fitted.weight_KD.T + fitted.bias_K).argmax(1)
    return float((answers_M == tests_M).mean()), seconds, fitted.regularization


def _theirs(
    features_ND: Array, labels_N: Array, test_MD: Array, tests_M: Array
) -> tuple[float, float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    raw = LogisticRegression(max_iter=5000)
    standardized = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    scores = [
        float(each.fit(features_ND, labels_N).score(test_MD, tests_M))
        for each in (raw, standardized)
    ]
    return scores[0], scores[1]


if __name__ == "__main__":
    main()
