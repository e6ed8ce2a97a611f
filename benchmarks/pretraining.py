"""What earlier training is worth: without labels, or on other classes.

python -m benchmarks.pretraining mae FOLDER [--limit 20m] [--keep DIR]
python -m benchmarks.pretraining halves FOLDER [--limit 10m] [--fine-tuning 2m] [--seeds 3]
                                               [--keep DIR]

FOLDER holds `train` and `test` with a folder for each class, such as CIFAR-10.

`mae` trains a masked autoencoder on all training images without their labels. A logistic regression
on 100 labelled images of each class then reads three kinds of features of the same images: the
pre-trained encoder's, those of the same encoder with random weights, and the pixels.

`halves` trains on the first half of the classes. Then 100 images of each other class are trained on
twice, for the same time (by default a fifth of the limit): from these weights, and from random
ones; with several seeds, twice for each.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.measured_runs import machine
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.config import RunConfig
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.data.reading.decoding import decode_image
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.evaluation.metrics.intervals import proportion
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.probing.features import FeatureStore, suitable_batch_size
from patchline.pipeline.models.probing.linear_fit import fit_head
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.pipeline.training.config import duration_seconds
from patchline.pipeline.training.initial_weights.starting_point import find_starting_point
from patchline.pipeline.training.job import TRAINING
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import Event
from patchline.plugin_api import ImageSpec

Array = np.ndarray[Any, Any]
_LABELLED, _TESTED = 100, 200
"""Images of each class."""
_SHORTER = 5
_ENCODER: dict[str, Any] = {
    "name": "vit",
    "embed_dim": 192,
    "depth": 6,
    "num_heads": 3,
    "mlp_dim": 768,
    "pooling": "average",
    "patch_embedding": {"name": "conv", "patch_size": 4},
}
_MAE: dict[str, Any] = {
    "model": _ENCODER,
    "objective": {"name": "mae", "decoder_dim": 96},
    "augmentation": {"name": "standard"},
    "optimizer": {"learning_rate": 1e-3, "beta2": 0.95},
}
_SUPERVISED: dict[str, Any] = {
    "model": {
        "name": "vit",
        "embed_dim": 128,
        "depth": 1,
        "num_heads": 4,
        "mlp_dim": 256,
        "pooling": "average",
        "residual_init": "zero",
        "patch_embedding": {"name": "whitened", "num_halvings": 3, "early_pooling": True},
    },
    "augmentation": {"name": "standard", "pad": 0.0625},
    "optimizer": {
        "name": "muon",
        "learning_rate": 2.8e-3,
        "schedule": "linear",
        "warmup_fraction": 0.15,
        "weight_decay": 0.0,
        "momentum": 0.95,
        "beta2": 0.95,
        "gradient_clip": None,
    },
    "training": {"batch_size": 128, "ema_decay": 0.0},
}
"""As the presets plan short training runs on small images."""
_MANY: dict[str, Any] = {
    "optimizer": {"learning_rate": 12e-3, "weight_decay": 0.8},
    "training": {"batch_size": 256, "initial_image_scale": 0.75},
}
"""For the first half, as the presets plan some twenty passes over 25,000 of them."""
_FEW: dict[str, Any] = {"training": {"batch_size": 32}}
"""For the few images of the second half, on both sides."""


class Images(NamedTuple):
    """Decoded images (N, H, W, C) and their classes."""

    pixels: Array
    labels_N: Array


def _mae(given: argparse.Namespace) -> None:
    folder, keep = given.folder.resolve(), given.keep.resolve()
    changes = config_files.merge_settings(_MAE, {"training": {"time_limit": given.limit}})
    config, data, prepared = _prepare(folder / "train", keep, changes)
    trained = _train(config, data, prepared, keep / "mae")
    print(
        f"masked autoencoder: {trained.epochs:.1f} epochs, {trained.steps} steps in "
        f"{trained.seconds:.0f} s, {trained.images_per_second:.0f} images/s; validation loss "
        f"{trained.best_validation_loss or 0:.3f}",
        flush=True,
    )
    classes = sorted(each.name for each in (folder / "train").iterdir())
    labelled = _images(folder / "train", classes, _LABELLED, prepared.image)
    tests = _images(folder / "test", classes, _TESTED, prepared.image)
    torch.manual_seed(0)
    untrained = build_model(config.model, prepared.image, 0).eval()
    encoders = {"pre-trained encoder": load_model(trained.best)[0], "random encoder": untrained}
    for name, encoder in encoders.items():
        kept = keep / "features" / f"{name.replace(' ', '_')}_{trained.steps}"
        _say(name, *(_features(encoder, each, prepared.image, kept) for each in (labelled, tests)))
    _say("pixels", *((each.pixels.reshape(len(each.pixels), -1) / 255, each.labels_N)
                     for each in (labelled, tests)))  # fmt: skip


def _say(name: str, labelled: tuple[Array, Array], tests: tuple[Array, Array]) -> None:
    """Fit a head as `training.trainable head` does, and print its accuracy."""
    features_ND, labels_N = labelled
    nothing = features_ND[:0].astype(np.float32), labels_N[:0]
    fitted = fit_head(features_ND.astype(np.float32), labels_N, *nothing, int(labels_N.max()) + 1)
    answers_M = (tests[0] @ fitted.weight_KD.T + fitted.bias_K).argmax(1)
    found = proportion(int((answers_M == tests[1]).sum()), len(answers_M))
    print(
        f"{name}: {found.value:.1%} of {found.n} test images ({found.low:.1%} to {found.high:.1%}) "
        f"with a head on {len(labels_N)} labelled images",
        flush=True,
    )


def _features(
    encoder: torch.nn.Module, images: Images, spec: ImageSpec, folder: Path
) -> tuple[Array, Array]:
    device = torch.device("cpu")
    features = FeatureStore(
        encoder,
        images.pixels,
        np.arange(len(images.pixels)),
        spec,
        folder / str(len(images.pixels)),
        device,
        precision="float32",
        batch_size=suitable_batch_size(spec, device),
        head=linear_head(encoder, 1),
    ).features()
    return np.asarray(features), images.labels_N


def _halves(given: argparse.Namespace) -> None:
    folder, keep, seeds = given.folder.resolve(), given.keep.resolve(), given.seeds
    short = given.fine_tuning or f"{duration_seconds(given.limit) / _SHORTER:g}s"
    classes = sorted(each.name for each in (folder / "train").iterdir())
    half = len(classes) // 2
    first = _link_images(folder / "train", keep / "first", classes[:half], None)
    second = _link_images(folder / "train", keep / "second", classes[half:], _LABELLED)
    tests = _link_images(folder / "test", keep / "tests", classes[half:], None)
    changes = config_files.merge_settings(_SUPERVISED, _MANY)
    changes = config_files.merge_settings(changes, {"training": {"time_limit": given.limit}})
    before = _train(*_prepare(first, keep, changes), keep / "halves-first")
    print(
        f"pre-trained: {before.epochs:.1f} epochs, "
        f"{before.best_validation_accuracy or 0:.1%} of its own validation images"
    )
    changes = config_files.merge_settings(_SUPERVISED, _FEW)
    changes = config_files.merge_settings(changes, {"training": {"time_limit": short}})
    start = {"init": str(before.best / "model.safetensors")}
    warm = {"model": start, "training": {"trainable": "all"}}
    slower = {"optimizer": {"learning_rate": 1.4e-3}}
    sides = {"random weights": {}, "pre-trained": config_files.merge_settings(warm, slower)}
    found: dict[str, list[float]] = {name: [] for name in sides}
    for seed in range(seeds):
        for name, more in sides.items():
            asked = config_files.merge_settings(changes, {**more, "seed": seed})
            config, data, prepared = _prepare(second, keep, asked)
            kept = keep / f"halves-{name.replace(' ', '-')}-{seed}"
            trained = _train(config, data, prepared, kept)
            images = _images(tests, classes[half:], _TESTED * 2, prepared.image)
            found[name].append(
                _measure_accuracy(f"{name}, seed {seed}", trained, images, prepared.image)
            )
    if seeds > 1:
        means = {name: float(np.mean(values)) for name, values in found.items()}
        gains = np.subtract(found["pre-trained"], found["random weights"])
        error = float(gains.std(ddof=1)) / seeds**0.5
        print("; ".join(f"{name}: {value:.1%}" for name, value in means.items()), end="; ")
        print(f"gain {gains.mean():.1%}, standard error {error:.1%} over {seeds} seeds", flush=True)


def _measure_accuracy(name: str, trained: TrainResult, images: Images, spec: ImageSpec) -> float:
    """Print and return the share of the images that a trained model classifies correctly."""
    model = load_model(trained.best)[0]
    rows = np.arange(len(images.pixels))
    logits_NK = predict_logits(model, images.pixels, rows, spec).numpy()
    right = int((logits_NK.argmax(1) == images.labels_N).sum())
    found = proportion(right, len(rows))
    print(
        f"{name}: {found.value:.1%} of {found.n} test images ({found.low:.1%} to {found.high:.1%}) "
        f"after {trained.epochs:.1f} epochs in {trained.seconds:.0f} s",
        flush=True,
    )
    return found.value


def _link_images(source: Path, target: Path, classes: list[str], each: int | None) -> Path:
    """Return a folder with links to the first images of some classes."""
    shutil.rmtree(target, ignore_errors=True)
    for name in classes:
        (target / name).mkdir(parents=True)
        for file in sorted((source / name).iterdir())[:each]:
            (target / name / file.name).symlink_to(file)
    return target


def _prepare(
    images: Path, keep: Path, changes: dict[str, Any]
) -> tuple[RunConfig, IngestedData, PreparedData]:
    asked = config_files.merge_settings(
        {"name": "pretraining", "data": {"path": str(images)}}, changes
    )
    config, workspace = config_files.validate_config(asked), keep / "work"
    data = ingestion.ingest(config, workspace)
    if config.model.init:
        config = find_starting_point(config, "pretraining", workspace).config
    config = ingestion.resolve(config, data)
    return config, data, ingestion.prepare(config, data, workspace)


def _train(
    config: RunConfig, data: IngestedData, prepared: PreparedData, folder: Path
) -> TrainResult:
    job = job_of(config, data, prepared, folder, "benchmark", folder.parent / "work")
    return TRAINING.run(job.folder, job, _show)


def _show(event: Event) -> None:
    if event["kind"] == "metrics" and "validation/loss" in event["values"]:
        values = event["values"]
        print(f"  epoch {values['epoch']:.1f}: validation loss {values['validation/loss']:.3f}")


def _images(folder: Path, classes: list[str], each: int, spec: ImageSpec) -> Images:
    """Decode the first images of each class."""
    pixels, labels = [], []
    for label, name in enumerate(classes):
        for file in sorted((folder / name).iterdir())[:each]:
            decoded = decode_image(file.read_bytes(), spec.channels)
            pixels.append(resize_image(decoded, spec.height, spec.width, spec.resize))
            labels.append(label)
    return Images(np.stack(pixels), np.array(labels))


def main() -> None:
    """Run the comparison that the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    mae, halves = commands.add_parser("mae"), commands.add_parser("halves")
    mae.set_defaults(compare=_mae)
    halves.set_defaults(compare=_halves)
    for command in (mae, halves):
        command.add_argument("folder", type=Path)
        command.add_argument("--limit", default="20m", help="of the pre-training")
        command.add_argument("--keep", type=Path, default=Path("pretraining"))
    halves.add_argument("--fine-tuning", help="time for the second half")
    halves.add_argument("--seeds", type=int, default=1, help="of the second half")
    given = parser.parse_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    given.compare(given)


if __name__ == "__main__":
    main()
