"""Networks with the weights of a file, and the features of images that they compute."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from pipeline import config_files
from pipeline.data.reading.decoding import decode_image
from pipeline.data.reading.resizing import resize_image
from pipeline.initial_weights.loading import load_into
from pipeline.initial_weights.record import InitialWeights, kept_folder
from pipeline.initial_weights.starting_point import starting_point
from pipeline.models.model_building import build_model
from pipeline.plugin_api import DataTraits, ImageSpec
from pipeline.plugin_system.plugin_settings import resolve_settings
from pipeline.probing.features import features_of
from pipeline.probing.linear_head import linear_head

Array = np.ndarray[Any, Any]


class Images(NamedTuple):
    """Files with their classes."""

    files: list[Path]
    labels_N: Array


class Network(NamedTuple):
    """A model with trained weights, and what its images are like."""

    model: nn.Module
    image: ImageSpec
    sha256: str


def network_of(
    file: Path, num_classes: int, folder: Path, settings: dict[str, Any] | None = None
) -> Network:
    """Build the network that a run with `model.init` starts from.

    Args:
        file: holds the weights.
        num_classes: of the random head.
        folder: keeps the converted weights.
        settings: of the run, such as another image size.
    """
    init = {"model": {"init": str(file)}}
    config = config_files.requested(None, flags=config_files.merged(settings or {}, init))
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


def chosen_images(folder: Path, classes: list[str], counts: list[int], seed: int) -> Images:
    """Return a number of images of each class, the same ones for the same seed."""
    random, files, labels = np.random.default_rng(seed), [], []
    for label, (name, count) in enumerate(zip(classes, counts, strict=True)):
        there = sorted((folder / name).iterdir())
        if len(there) < count:
            raise SystemExit(f"{folder / name} has {len(there)} images, and {count} are needed")
        files += [there[position] for position in random.permutation(len(there))[:count]]
        labels += [label] * count
    return Images(files, np.array(labels))


def features(network: Network, images: Images, num_classes: int, folder: Path) -> Array:
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
    computed = features_of(
        network.model,
        linear_head(network.model, num_classes),
        pixels,
        np.arange(len(pixels)),
        spec,
        folder / network.sha256[:16],
        device=torch.device("cpu"),
        precision="float32",
    )
    seconds = time.monotonic() - began
    print(f"{len(pixels)} features in {seconds:.0f} s, {len(pixels) / seconds:.1f}/s", flush=True)
    return np.asarray(computed)
