"""How a network whose weights were resized agrees with the original: our resizing against timm's.

python -m benchmarks.resized_weights FOLDER WEIGHTS [--images 8] [--tests 80] [--keep DIR]

FOLDER holds a folder of images for each class; WEIGHTS is a file of a ViT-B/16 for 224 pixels. A
head is fitted on the original's features of a few images of each class. It then classifies the same
test images by the features of the original and of networks for 384 pixels and for patches of 14
pixels, as `model.init` builds them; timm's positions and kernel are put into the same networks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.layers import resample_abs_pos_embed
from timm.layers.patch_embed import resample_patch_embed

from benchmarks.frozen_networks import (
    Array,
    Images,
    Network,
    chosen_images,
    features,
    network_of,
)
from benchmarks.measured_runs import machine
from pipeline import quiet_libraries
from pipeline.probing.linear_fit import FittedHead, fit_head

POSITIONS, KERNEL = "position_embedding.positions_1ND", "patch_embedding.projection.weight"
RESIZED: dict[str, dict[str, Any]] = {
    "384 pixels": {"data": {"image_size": 384}},
    "patch 14": {"model": {"patch_embedding": {"patch_size": 14}}},
}


def main() -> None:
    """Print the agreement with the original for each network."""
    arguments = _arguments()
    quiet_libraries.apply()
    print(f"{machine()}; weights {arguments.weights.name}", flush=True)
    classes = sorted(each.name for each in arguments.folder.iterdir() if each.is_dir())
    training, tests = _divided(arguments.folder, classes, arguments.images, arguments.tests)
    count, keep = len(classes), arguments.keep
    original = network_of(arguments.weights, count, keep)
    training_ND = features(original, training, count, keep / "training")
    nothing = training_ND[:0], training.labels_N[:0]
    head = fit_head(training_ND, training.labels_N, *nothing, count)
    answers_M = _answers(head, features(original, tests, count, keep / "original"))
    print(f"original: accuracy {(answers_M == tests.labels_N).mean():.1%} of {len(answers_M)}")
    for name, settings in RESIZED.items():
        ours = network_of(arguments.weights, count, keep, settings)
        folder = keep / name.replace(" ", "-")
        found_MD = features(ours, tests, count, folder / "patchline")
        _use_timms_resizing(ours, original)
        theirs_MD = features(ours, tests, count, folder / "timm")
        for who, test_MD in (("Patchline", found_MD), ("timm", theirs_MD)):
            resized_M = _answers(head, test_MD)
            print(
                f"{name}, resized by {who}: agrees with the original on "
                f"{(resized_M == answers_M).mean():.1%} of {len(answers_M)} images, accuracy "
                f"{(resized_M == tests.labels_N).mean():.1%}"
            )
        difference = np.abs(found_MD - theirs_MD).max() / np.abs(theirs_MD).max()
        print(f"{name}: features differ by at most {difference:.1e} of the largest", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--images", type=int, default=8, help="training images of each class")
    parser.add_argument("--tests", type=int, default=80, help="test images of all classes")
    parser.add_argument("--keep", type=Path, default=Path("resized_weights"))
    return parser.parse_args()


def _divided(folder: Path, classes: list[str], each: int, tests: int) -> tuple[Images, Images]:
    """Return training and test images, with as many of each class."""
    both = chosen_images(folder, classes, [each + tests // len(classes)] * len(classes), 0)
    place = np.arange(len(both.files)) % (each + tests // len(classes))
    training, rest = (
        Images([both.files[row] for row in rows], both.labels_N[rows])
        for rows in (np.flatnonzero(place < each), np.flatnonzero(place >= each))
    )
    return training, rest


def _use_timms_resizing(resized: Network, original: Network) -> None:
    """Replace positions and kernel by the original's, resized with timm's functions."""
    old, new = original.model.state_dict(), resized.model.state_dict()
    height, width = new[KERNEL].shape[2:]
    grid = [resized.image.height // height, resized.image.width // width]
    with torch.no_grad():
        new[POSITIONS].copy_(resample_abs_pos_embed(old[POSITIONS], grid, num_prefix_tokens=1))
        new[KERNEL].copy_(resample_patch_embed(old[KERNEL], [height, width]))


def _answers(head: FittedHead, features_MD: Array) -> Array:
    answers_M: Array = (features_MD @ head.weight_KD.T + head.bias_K).argmax(1)
    return answers_M


if __name__ == "__main__":
    main()
