"""Features of a frozen network: a head from few images, resized weights, speed.

python -m benchmarks.frozen_networks few-images FOLDER WEIGHTS [--images 8] [--tests 2000]
                                                [--draws 5] [--keep DIR]
python -m benchmarks.frozen_networks few-images FOLDER WEIGHTS --classes daisy tulip --images 125
                                                --tests 153
python -m benchmarks.frozen_networks few-images FOLDER WEIGHTS --images 0 --tests 0
python -m benchmarks.frozen_networks resized FOLDER WEIGHTS [--images 8] [--tests 80] [--keep DIR]
python -m benchmarks.frozen_networks speed [IMAGES] [ROUNDS] [--precision bfloat16]

`few-images` fits a head on few images of each class, in turn with scikit-learn. FOLDER holds a
folder for each class, or `train` and `test` (or `val`) with such folders, such as CIFAR-10; WEIGHTS
is a file of trained weights. With a given test split, the test images are the same for every draw;
otherwise each draw divides the same images into others for training and test. Where a number is 0,
all images of that split are used; all training images are one draw. All features are kept in DIR,
so a second command takes seconds. Both sides fit the same features: ours as `training.trainable
head` does, scikit-learn's LogisticRegression with its own C of 1, on raw and on standardized
features.

`resized` prints how a network whose weights were resized agrees with the original: our resizing
against timm's. FOLDER holds a folder of images for each class; WEIGHTS is a file of a ViT-B/16 for
224 pixels. A head is fitted on the original's features of a few images of each class. It then
classifies the same test images by the features of the original and of networks for 384 pixels and
for patches of 14 pixels, as `model.init` builds them; timm's positions and kernel are put into the
same networks.

`speed` prints how fast the features of a ViT-B/16 are computed and stored, and how long a head
takes to fit. The features of random 224x224 images are computed in turn with a bare loop over the
same images in the same batches, which keeps nothing on disk, and with ONNX Runtime in batches of 16
and of 4, with as many threads as torch (float32 only). Then heads are fitted on random features,
with the whole search for the penalty.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from benchmarks.measured_runs import machine
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.data.reading.decoding import decode_image
from patchline.pipeline.data.reading.resizing import resize_image
from patchline.pipeline.evaluation.metrics.intervals import mean_of_repeats
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.onnx_export import write_onnx
from patchline.pipeline.models.onnx_session import open_session
from patchline.pipeline.models.probing.features import (
    FeatureStore,
    suitable_batch_size,
)
from patchline.pipeline.models.probing.linear_fit import FittedHead, fit_head
from patchline.pipeline.models.probing.linear_head import linear_head
from patchline.pipeline.plugin_system.plugin_settings import resolve_settings
from patchline.pipeline.training.initial_weights.loading import load_into
from patchline.pipeline.training.initial_weights.record import InitialWeights, weights_folder
from patchline.pipeline.training.initial_weights.starting_point import find_starting_point
from patchline.plugin_api import DataTraits, ImageSpec

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
    config = config_files.build_config(
        None, preset_name="none", flags=config_files.merge_settings(settings or {}, init)
    )
    start = find_starting_point(config, "few", folder.resolve())
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
    load_into(model, found, weights_folder(folder.resolve(), found.sha256), ())
    return Network(model.eval(), image, found.sha256)


def choose_images(folder: Path, classes: list[str], counts: list[int], seed: int) -> Images:
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
    device = torch.device("cpu")
    computed = FeatureStore(
        network.model,
        pixels,
        np.arange(len(pixels)),
        spec,
        folder / network.sha256[:16],
        device,
        precision="float32",
        batch_size=suitable_batch_size(spec, device),
        head=linear_head(network.model, num_classes),
    ).features()
    seconds = time.monotonic() - began
    print(f"{len(pixels)} features in {seconds:.0f} s, {len(pixels) / seconds:.1f}/s", flush=True)
    return np.asarray(computed)


class Draw(NamedTuple):
    """The features and labels of training and test images."""

    features_ND: Array
    labels_N: Array
    test_MD: Array
    tests_M: Array


def compare_heads(given: argparse.Namespace) -> None:
    """Compute the features, fit each draw with both, and print the accuracies."""
    print(f"{machine()}; weights {given.weights.name}", flush=True)
    given_split = (given.folder / "train").is_dir()
    parent = given.folder / "train" if given_split else given.folder
    classes = given.classes or sorted(each.name for each in parent.iterdir() if each.is_dir())
    network = network_of(given.weights, len(classes), given.keep)
    draws = (_draw_from_split if given_split else _divide)(given, network, classes)
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
    if not given.images:
        return
    sides = {
        "Patchline": ours,
        "scikit-learn, raw": theirs_raw,
        "scikit-learn, standardized": theirs_standardized,
    }
    for name, found in sides.items():
        mean = mean_of_repeats(found, (0.0, 1.0))
        print(f"{name}: {mean.value:.1%} (95% t interval {mean.low:.1%} to {mean.high:.1%})")


def _draw_from_split(
    given: argparse.Namespace, network: Network, classes: list[str]
) -> Iterator[Draw]:
    """Draw training images from one split; the test images are those of the other."""
    train, test = given.folder / "train", given.folder / "test"
    test = test if test.is_dir() else given.folder / "val"
    each = given.tests // len(classes)
    tests = choose_images(test, classes, [each] * len(classes) if each else _all(test, classes), 0)
    test_MD = features(network, tests, len(classes), given.keep / "tests")
    counts = [given.images] * len(classes) if given.images else _all(train, classes)
    for seed in range(given.draws if given.images else 1):
        draw = choose_images(train, classes, counts, seed)
        features_ND = features(network, draw, len(classes), given.keep / f"draw-{seed}")
        yield Draw(features_ND, draw.labels_N, test_MD, tests.labels_N)


def _all(folder: Path, classes: list[str]) -> list[int]:
    return [sum(1 for _ in (folder / name).iterdir()) for name in classes]


def _divide(given: argparse.Namespace, network: Network, classes: list[str]) -> Iterator[Draw]:
    """Divide the same images of each class in another way for each draw."""
    share, more = divmod(given.tests, len(classes))
    counts = [given.images + share + (label < more) for label in range(len(classes))]
    images = choose_images(given.folder, classes, counts, 0)
    folder = given.keep / f"divided-{'-'.join(classes)}-{len(images.files)}"
    features_ND = features(network, images, len(classes), folder)
    for seed in range(given.draws):
        order = np.random.default_rng(seed).permutation(len(images.files))
        labels = images.labels_N[order]
        first = [order[labels == label][: given.images] for label in range(len(classes))]
        training = np.concatenate(first)
        tests = np.setdiff1d(order, training)
        yield Draw(
            *(features_ND[training], images.labels_N[training]),
            *(features_ND[tests], images.labels_N[tests]),
        )


def _ours(draw: Draw, classes: int) -> tuple[float, float, float]:
    began = time.monotonic()
    nothing = draw.features_ND[:0], draw.labels_N[:0]
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


POSITIONS, KERNEL = "position_embedding.positions_1ND", "patch_embedding.projection.weight"
RESIZED: dict[str, dict[str, Any]] = {
    "384 pixels": {"data": {"image_size": 384}},
    "patch 14": {"model": {"patch_embedding": {"patch_size": 14}}},
}


def compare_resizing(given: argparse.Namespace) -> None:
    """Print the agreement with the original for each network."""
    print(f"{machine()}; weights {given.weights.name}", flush=True)
    classes = sorted(each.name for each in given.folder.iterdir() if each.is_dir())
    training, tests = _training_and_tests(given.folder, classes, given.images, given.tests)
    count, keep = len(classes), given.keep
    original = network_of(given.weights, count, keep)
    training_ND = features(original, training, count, keep / "training")
    nothing = training_ND[:0], training.labels_N[:0]
    head = fit_head(training_ND, training.labels_N, *nothing, count)
    answers_M = _answers(head, features(original, tests, count, keep / "original"))
    print(f"original: accuracy {(answers_M == tests.labels_N).mean():.1%} of {len(answers_M)}")
    for name, settings in RESIZED.items():
        ours = network_of(given.weights, count, keep, settings)
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


def _training_and_tests(
    folder: Path, classes: list[str], each: int, tests: int
) -> tuple[Images, Images]:
    """Return training and test images, with as many of each class."""
    both = choose_images(folder, classes, [each + tests // len(classes)] * len(classes), 0)
    place = np.arange(len(both.files)) % (each + tests // len(classes))
    training, rest = (
        Images([both.files[row] for row in rows], both.labels_N[rows])
        for rows in (np.flatnonzero(place < each), np.flatnonzero(place >= each))
    )
    return training, rest


def _use_timms_resizing(resized: Network, original: Network) -> None:
    """Replace positions and kernel by the original's, resized with timm's functions."""
    from timm.layers import resample_abs_pos_embed
    from timm.layers.patch_embed import resample_patch_embed

    old, new = original.model.state_dict(), resized.model.state_dict()
    height, width = new[KERNEL].shape[2:]
    grid = [resized.image.height // height, resized.image.width // width]
    with torch.no_grad():
        new[POSITIONS].copy_(resample_abs_pos_embed(old[POSITIONS], grid, num_prefix_tokens=1))
        new[KERNEL].copy_(resample_patch_embed(old[KERNEL], [height, width]))


def _answers(head: FittedHead, features_MD: Array) -> Array:
    answers_M: Array = (features_MD @ head.weight_KD.T + head.bias_K).argmax(1)
    return answers_M


_CLASSES, _FEATURES = 10, 768
_FITS = ((80, 0), (2_000, 300), (50_000, 5_000))
"""Training and validation images."""
_IMAGE = ImageSpec(
    channels=3, height=224, width=224, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
)
_VIT = {
    "name": "vit",
    "embed_dim": _FEATURES,
    "depth": 12,
    "num_heads": 12,
    "mlp_dim": 3072,
    "patch_embedding": {"name": "conv", "patch_size": 16},
}
_CPU = torch.device("cpu")
_ONNX_BATCHES = 16, 4


def measure_speed(given: argparse.Namespace) -> None:
    """Print a line for the features, and one for each fit."""
    print(machine())
    _compare_features(given.images, given.rounds, given.precision)
    for images, validation_images in _FITS:
        _time_fit(images, validation_images)


def _compare_features(count: int, rounds: int, precision: str) -> None:
    model = build_model(ModelChoice.model_validate(_VIT), _IMAGE, _CLASSES).eval()
    images = np.random.default_rng(0).integers(0, 256, (count, 224, 224, 3), dtype=np.uint8)
    rows = np.arange(count)
    head = linear_head(model, _CLASSES, _IMAGE)
    with tempfile.TemporaryDirectory() as folder:
        store = FeatureStore(
            model, images, rows, _IMAGE, Path(folder), _CPU, precision,
            suitable_batch_size(_IMAGE, _CPU), head,
        )  # fmt: skip
        expected = store.seconds_per_image()
    onnx = _OnnxBackbone(model)
    sizes = _ONNX_BATCHES if precision == "float32" else ()
    bare: list[float] = []
    ours: list[float] = []
    theirs: dict[int, list[float]] = {size: [] for size in sizes}
    for _ in range(rounds):
        bare.append(_bare_loop(model, images, precision))
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            size = suitable_batch_size(_IMAGE, _CPU)
            features_ND = FeatureStore(
                *(model, images, rows, _IMAGE, Path(folder), _CPU, precision, size, head)
            ).features()
            ours.append(time.perf_counter() - began)
        for size in sizes:
            theirs[size].append(onnx.seconds(images, size, features_ND))
    print(
        f"features of {count} images of 224x224, ViT-B/16, {precision}, median of {rounds} rounds: "
        f"{count / statistics.median(ours):.2f} images/s, bare loop "
        f"{count / statistics.median(bare):.2f}, ratio {_ratio(bare, ours):.3f}; measured before "
        f"on a few images: {1 / expected:.2f} images/s",
        flush=True,
    )
    for size, seconds in theirs.items():
        print(
            f"ONNX Runtime, batches of {size}, {torch.get_num_threads()} threads: "
            f"{count / statistics.median(seconds):.2f} images/s, "
            f"{_ratio(ours, seconds):.3f} times the speed of torch; "
            f"features differ by at most {onnx.difference:.1e}",
            flush=True,
        )


def _ratio(one: list[float], other: list[float]) -> float:
    """Return how many times faster the other is, as the median over the rounds."""
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


class _OnnxBackbone:
    """A model without its head, computed by ONNX Runtime."""

    def __init__(self, model: nn.Module) -> None:
        backbone = copy.deepcopy(model)
        backbone.head = nn.Identity()
        pixels_BCHW = torch.zeros(2, _IMAGE.channels, _IMAGE.height, _IMAGE.width)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "backbone.onnx"
            write_onnx(backbone, pixels_BCHW, file, input_name="images", output_names=["features"])
            self.session = open_session(file, torch.get_num_threads())
        self.difference = 0.0

    def seconds(
        self, images: np.ndarray[Any, Any], size: int, expected_ND: np.ndarray[Any, Any]
    ) -> float:
        """Compute the features, and return the seconds; note how much they differ."""
        began, batches = time.perf_counter(), []
        for start in range(0, len(images), size):
            batch_BCHW = normalize(torch.from_numpy(images[start : start + size]), _IMAGE)
            batches += self.session.run(None, {"images": batch_BCHW.numpy()})
        taken = time.perf_counter() - began
        largest = float(np.abs(np.concatenate(batches) - expected_ND).max())
        self.difference = max(self.difference, largest)
        return taken


@torch.inference_mode()
def _bare_loop(model: nn.Module, images: np.ndarray[Any, Any], precision: str) -> float:
    began = time.perf_counter()
    size = suitable_batch_size(_IMAGE, _CPU)
    for start in range(0, len(images), size):
        batch_BHWC = torch.from_numpy(images[start : start + size])
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            model(normalize(batch_BHWC, _IMAGE))
    return time.perf_counter() - began


def _time_fit(images: int, validation_images: int) -> None:
    random = np.random.default_rng(0)
    labels_N = np.arange(images + validation_images) % _CLASSES
    centres_KD = 0.1 * random.normal(size=(_CLASSES, _FEATURES))
    mixed_DD = random.normal(size=(_FEATURES, _FEATURES)) * np.arange(1, _FEATURES + 1) ** -0.7
    noise_ND = random.normal(size=(len(labels_N), _FEATURES))
    features_ND = ((centres_KD[labels_N] + noise_ND) @ mixed_DD).astype(np.float32)
    training, validation = slice(images), slice(images, None)
    began, processor_began = time.perf_counter(), time.process_time()
    head = fit_head(
        *(features_ND[training], labels_N[training]),
        *(features_ND[validation], labels_N[validation]),
        _CLASSES,
    )
    print(
        f"head of {images} x {_FEATURES} features and {_CLASSES} classes: "
        f"{time.perf_counter() - began:.2f} s, {time.process_time() - processor_began:.2f} s of "
        f"processor time, {len(head.tried)} values of C tried on "
        f"{head.validation_images} validation and {head.held_out_images} held-out images",
        flush=True,
    )


def main() -> None:
    """Measure what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    few, resized = commands.add_parser("few-images"), commands.add_parser("resized")
    for command, tests, folder in ((few, 2000, "few_images"), (resized, 80, "resized_weights")):
        command.add_argument("folder", type=Path)
        command.add_argument("weights", type=Path)
        command.add_argument("--images", type=int, default=8, help="of each class, for training")
        command.add_argument("--tests", type=int, default=tests, help="images for testing")
        command.add_argument("--keep", type=Path, default=Path(folder))
    few.add_argument("--classes", nargs="+", help="names of the folders; all if not given")
    few.add_argument("--draws", type=int, default=5)
    few.set_defaults(measure=compare_heads)
    resized.set_defaults(measure=compare_resizing)
    speed = commands.add_parser("speed")
    speed.add_argument("images", type=int, nargs="?", default=48)
    speed.add_argument("rounds", type=int, nargs="?", default=5)
    speed.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    speed.set_defaults(measure=measure_speed)
    given = parser.parse_args()
    quiet_libraries.apply()
    given.measure(given)


if __name__ == "__main__":
    main()
