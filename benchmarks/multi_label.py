"""Several labels an image: beside a plain torch loop and timm's, and heads beside scikit-learn's.

    python -m benchmarks.multi_label make CIFAR TILES [--images 10000] [--tests 2000] [--seed 0]
    python -m benchmarks.multi_label torch TILES [--minutes 5] [--seeds 3] [--preset balanced]
                                     [--rate 1e-3] [--sides torch timm unplanned] [--keep DIR]
    python -m benchmarks.multi_label probe TILES WEIGHTS [--images 2000] [--tests 1000] [--keep DIR]

`make` writes a data set of known labels: each image is four images of CIFAR-10 tiled two by two,
its labels the classes of the four, so that it has one to four of ten. CIFAR holds `train` and
`test` with a folder for each class; TILES gets the images and `labels.csv`. Images of one split are
tiles of images of that split alone; a tenth of the training images becomes validation tiles.

`torch` trains for the same minutes on the same images, seed by seed and side by side: with
`patchline run`; the network that its plan has chosen in a plain PyTorch loop (AdamW, cosine,
mirrored and shifted images; side `torch`), and in a loop with timm's AdamW, binary cross-entropy,
RandAugment and moving average (side `timm`, which needs `pip install timm`); and `patchline run
--preset none` (side `unplanned`). All learn with binary cross-entropy. The loops hold decoded
images in memory and spend no time on validation. It prints the mean average precision (mAP) on the
same test images, computed by scikit-learn for all, and the differences of each side from Patchline
with the same seed. Each result is kept in DIR, and the same command continues after an
interruption.

`probe` fits heads on the same frozen features: ours as `training.trainable head` does, with C
chosen by the mAP on validation images, and scikit-learn's OneVsRestClassifier of
LogisticRegression, with the same C and with its own of 1. It prints the mAP on test images, the
largest difference of a probability, and the seconds.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import math
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn import functional

from benchmarks.frozen_networks import Images, features, network_of
from benchmarks.measured_runs import machine, measure_run
from patchline.pipeline.data.labels import label_sets
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.models.probing.linear_fit import fit_head
from patchline.pipeline.training.train_result import TrainResult
from patchline.plugin_api import ImageSpec

Array = np.ndarray[Any, Any]
TABLE = "labels.csv"
_SIDE, _TILES = 32, 4
_VALIDATION_SHARE = 0.1
_BATCH, _DECAY, _SHIFT = 128, 0.05, 4
_AVERAGE = 0.999
_SPLITS = ("train", "validation", "test")
_OWN, _UNPLANNED = "patchline", "unplanned"


# -- the data ----------------------------------------------------------------------------------


def make(given: argparse.Namespace) -> None:
    """Write the tiles and their table."""
    training, tests = (_by_class(given.cifar / split) for split in ("train", "test"))
    random = np.random.default_rng(given.seed)
    random.shuffle(training)
    held_out = round(_VALIDATION_SHARE * len(training))
    validation, training = training[:held_out], training[held_out:]
    validation_images = round(_VALIDATION_SHARE * given.images)
    counts = (given.images - validation_images, validation_images, given.tests)
    given.tiles.mkdir(parents=True, exist_ok=True)
    with (given.tiles / TABLE).open("w", newline="", encoding="utf-8") as opened:
        table = csv.writer(opened)
        table.writerow(["path", "label", "split"])
        sources = (training, validation, tests)
        for split, files, count in zip(_SPLITS, sources, counts, strict=True):
            for number in range(count):
                chosen = [files[int(place)] for place in random.integers(len(files), size=_TILES)]
                path = f"{split}/{number:06d}.png"
                _write_tiles([file for file, _ in chosen], given.tiles / path)
                labels = sorted({label for _, label in chosen})
                table.writerow([path, "|".join(labels), split])
    print(f"{sum(counts):,} images of {2 * _SIDE} pixels in {given.tiles}")


def _by_class(folder: Path) -> list[tuple[Path, str]]:
    """Return the images below a folder of folders with their classes."""
    found = [(file, file.parent.name) for file in sorted(folder.glob("*/*")) if file.is_file()]
    if not found:
        raise SystemExit(f"{folder} holds no folders of images")
    return found


def _write_tiles(files: list[Path], target: Path) -> None:
    pixels = [np.asarray(Image.open(file).convert("RGB").resize((_SIDE, _SIDE))) for file in files]
    rows = [np.concatenate(pixels[start : start + 2], 1) for start in (0, 2)]
    target.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(rows)).save(target)


class Tiles(NamedTuple):
    """The images of a split in memory."""

    files: list[Path]
    images_NHWC: Array
    """uint8."""
    sets_NK: Array


def read_tiles(folder: Path, split: str, side: int | None = None) -> tuple[Tiles, list[str]]:
    """Return the images of a split, and all labels.

    Args:
        folder: that `make` has written.
        split: train, validation or test.
        side: of the images in pixels; None for their own.
    """
    with (folder / TABLE).open(newline="", encoding="utf-8") as opened:
        rows = list(csv.DictReader(opened))
    labels = sorted({label for row in rows for label in row["label"].split("|")})
    rows = [row for row in rows if row["split"] == split]
    texts = [label_sets.encode_labels(row["label"].split("|")) for row in rows]
    files = [folder / row["path"] for row in rows]
    opened_images = (Image.open(file).convert("RGB") for file in files)
    resized = [each.resize((side, side)) if side else each for each in opened_images]
    pixels = np.stack([np.asarray(each) for each in resized])
    return Tiles(files, pixels, label_sets.matrix(texts, labels)), labels


# -- three ways to train -----------------------------------------------------------------------


class Trained(FrozenModel):
    """What one side has reached with one seed."""

    key: dict[str, str | float]
    """What determines it: side, seed, minutes, preset, rate and tiles."""
    mAP: float
    """Of scikit-learn, on the test images."""
    seconds: float
    """Of training."""
    best: str = ""
    """Weights and description of the network that `patchline run` has trained."""


def compare_training(given: argparse.Namespace) -> None:
    """Train with all sides, seed by seed, and print their mAP; results that are kept count."""
    if "timm" in given.sides and importlib.util.find_spec("timm") is None:
        raise SystemExit("timm is not installed. Run `pip install timm`, or choose other --sides.")
    print(machine(), flush=True)
    given.keep.mkdir(parents=True, exist_ok=True)
    maps: dict[str, list[float]] = {side: [] for side in (_OWN, *given.sides)}
    for seed in range(given.seeds):
        own = _train_once(given, _OWN, seed)
        turn = seed % max(1, len(given.sides))  # no side is always the last
        results = {_OWN: own}
        for side in (*given.sides[turn:], *given.sides[:turn]):
            results[side] = _train_once(given, side, seed, own)
        for side, result in results.items():
            maps[side].append(result.mAP)
    for side, each in maps.items():
        spread = f", from {min(each):.4f} to {max(each):.4f}" if len(each) > 1 else ""
        print(f"{side}: mAP {statistics.mean(each):.4f}, mean of {len(each)} seeds{spread}")
    for side in given.sides:
        apart = [ours - theirs for ours, theirs in zip(maps[_OWN], maps[side], strict=True)]
        print(f"{_OWN} - {side}: {', '.join(f'{100 * each:+.1f}' for each in apart)} points")


def _train_once(
    given: argparse.Namespace, side: str, seed: int, own: Trained | None = None
) -> Trained:
    """Return a result that is kept, or train and keep it; `own` is that of the planned run."""
    file = given.keep / "trained.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    kept = [Trained.model_validate_json(line) for line in lines]
    result = next((each for each in kept if each.key == _key(given, side, seed)), None)
    if result is None:
        if side in _RECIPES and own is not None:
            result = _train_loop(given, side, seed, own)
        else:
            result = _train_run(given, side, seed)
        with file.open("a", encoding="utf-8") as opened:
            opened.write(f"{result.model_dump_json()}\n")
    print(f"seed {seed}, {side}: mAP {result.mAP:.4f} in {result.seconds:.0f} s", flush=True)
    return result


def _key(given: argparse.Namespace, side: str, seed: int) -> dict[str, str | float]:
    own = {"preset": given.preset} if side != _UNPLANNED else {}
    rate = {"rate": given.rate} if side in _RECIPES else {}
    tiles = str(given.tiles.resolve())
    return {"side": side, "seed": seed, "minutes": given.minutes, "tiles": tiles, **own, **rate}


def _train_run(given: argparse.Namespace, side: str, seed: int) -> Trained:
    """Train with `patchline run`, as planned or without a plan."""
    folder = given.keep / f"{side}-{seed}-{given.minutes:g}"
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
    folder.mkdir()
    preset = "none" if side == _UNPLANNED else given.preset
    limit = ("--training.time-limit", f"{given.minutes * 60:g}s")
    table = str((given.tiles / TABLE).resolve())
    summary = measure_run(table, "--preset", preset, "--seed", str(seed), *limit, folder=folder)
    trained = TrainResult.model_validate(summary["training"])
    model, description = load_model(trained.best)
    image = description.image
    tests, _ = read_tiles(given.tiles, "test", image.width)
    print(
        f"seed {seed}, {side}: {trained.parameters:,} parameters, {image.width} pixels, best of "
        f"epoch {trained.best_epoch}; its own report: {summary['metrics'].get('test/mAP')}",
        flush=True,
    )
    return Trained(
        key=_key(given, side, seed),
        mAP=_map_of(model, tests, image.mean, image.std),
        seconds=trained.seconds,
        best=str(Path(trained.best).resolve()),
    )


def _train_loop(given: argparse.Namespace, side: str, seed: int, own: Trained) -> Trained:
    """Train the network of a run in a loop of its own, for as long as the run did."""
    _, description = load_model(Path(own.best))
    image = description.image
    training, labels = read_tiles(given.tiles, "train", image.width)
    tests, _ = read_tiles(given.tiles, "test", image.width)
    torch.manual_seed(seed)
    model = build_model(description.model, image, len(labels)).to(_device())
    model = train(model, training, own.seconds, _RECIPES[side](model, image, given.rate))
    reached = _map_of(model, tests, image.mean, image.std)
    return Trained(key=_key(given, side, seed), mAP=reached, seconds=own.seconds)


class Recipe(NamedTuple):
    """What differs between the two loops."""

    optimizer: torch.optim.Optimizer
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    augmented: Callable[[Array], torch.Tensor]
    """Maps a batch (B, H, W, C) of uint8 to the model's input."""
    average: Any = None
    """A moving average of the model, updated after each step."""


def plain_recipe(model: nn.Module, image: ImageSpec, rate: float) -> Recipe:
    """Return how a plain script trains."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=_DECAY)
    loss = functional.binary_cross_entropy_with_logits
    return Recipe(optimizer, loss, _build_shift(image.mean, image.std))


def timm_recipe(model: nn.Module, image: ImageSpec, rate: float) -> Recipe:
    """Return timm's optimizer, loss, augmentation and moving average."""
    from timm.data.transforms_factory import create_transform
    from timm.loss.binary_cross_entropy import BinaryCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils.model_ema import ModelEmaV3

    transform = create_transform(
        image.width,
        is_training=True,
        scale=(0.6, 1.0),
        auto_augment="rand-m5-mstd0.5-inc1",
        mean=image.mean,
        std=image.std,
    )

    def augmented(images_BHWC: Array) -> torch.Tensor:
        return torch.stack([transform(Image.fromarray(pixels)) for pixels in images_BHWC])

    return Recipe(
        create_optimizer_v2(model, "adamw", lr=rate, weight_decay=_DECAY),
        BinaryCrossEntropy(smoothing=0.0),
        augmented,
        ModelEmaV3(model, decay=_AVERAGE, use_warmup=True),
    )


_RECIPES = {"torch": plain_recipe, "timm": timm_recipe}


def _build_shift(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> Callable[[Array], torch.Tensor]:
    """Return a function that mirrors half of the images, and shifts all of a batch alike."""

    def augmented(images_BHWC: Array) -> torch.Tensor:
        images_BCHW = _normalize(images_BHWC, mean, std)
        flipped_B = torch.rand(len(images_BCHW)) < 0.5  # noqa: PLR2004 - a half
        images_BCHW[flipped_B] = images_BCHW[flipped_B].flip(3)
        side = images_BCHW.shape[3]
        padded = functional.pad(images_BCHW, [_SHIFT] * 4, mode="reflect")
        top, left = torch.randint(0, 2 * _SHIFT + 1, (2,)).tolist()
        return padded[:, :, top : top + side, left : left + side]

    return augmented


def train(model: nn.Module, training: Tiles, seconds: float, recipe: Recipe) -> nn.Module:
    """Train for so many seconds, with a cosine schedule over them; return the model to use."""
    device = _device()
    model.to(device).train()
    optimizer = recipe.optimizer
    peaks = [group["lr"] for group in optimizer.param_groups]
    began = time.perf_counter()
    for rows in _batches(len(training.images_NHWC)):
        progress = (time.perf_counter() - began) / seconds
        if progress >= 1:
            break
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            warm = min(1.0, progress / 0.05)
            group["lr"] = peak * warm * (1 + math.cos(math.pi * progress)) / 2
        images_BCHW = recipe.augmented(training.images_NHWC[rows]).to(device)
        targets_BK = torch.from_numpy(training.sets_NK[rows]).float().to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits_BK = model(images_BCHW)
        optimizer.zero_grad()
        recipe.loss(logits_BK.float(), targets_BK).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if recipe.average is not None:
            recipe.average.update(model)
    return model if recipe.average is None else cast("nn.Module", recipe.average.module)


def _batches(images: int) -> Iterator[Array]:
    while True:
        shuffled = torch.randperm(images).numpy()
        for start in range(0, max(1, images - _BATCH + 1), _BATCH):
            yield shuffled[start : start + _BATCH]


def _normalize(images_BHWC: Array, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    images_BCHW = torch.from_numpy(images_BHWC).permute(0, 3, 1, 2).float() / 255
    means, stds = (torch.tensor(each)[:, None, None] for each in (mean, std))
    return (images_BCHW - means) / stds


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@torch.inference_mode()
def _map_of(
    model: nn.Module, tests: Tiles, mean: tuple[float, ...], std: tuple[float, ...]
) -> float:
    """Return scikit-learn's macro mean of the average precision on the test images."""
    model.to(_device()).eval()
    logits = [
        model(_normalize(tests.images_NHWC[start : start + _BATCH], mean, std).to(_device())).cpu()
        for start in range(0, len(tests.images_NHWC), _BATCH)
    ]
    return float(average_precision_score(tests.sets_NK, torch.cat(logits).float().numpy()))


# -- heads on frozen features ------------------------------------------------------------------


def compare_heads(given: argparse.Namespace) -> None:
    """Compute the features once, fit both heads, and print how they agree."""
    print(f"{machine()}; weights {given.weights.name}", flush=True)
    limits = {"train": given.images, "validation": given.images // 4, "test": given.tests}
    splits: dict[str, Tiles] = {}
    for split, limit in limits.items():
        tiles, labels = read_tiles(given.tiles, split)
        splits[split] = Tiles(tiles.files[:limit], tiles.images_NHWC[:limit], tiles.sets_NK[:limit])
    network = network_of(given.weights, len(labels), given.keep)
    computed = {
        split: features(
            network, Images(tiles.files, tiles.sets_NK), len(labels), given.keep / split
        )
        for split, tiles in splits.items()
    }
    training, validation, tests = (splits[split] for split in _SPLITS)
    began = time.perf_counter()
    head = fit_head(
        computed["train"],
        training.sets_NK,
        computed["validation"],
        validation.sets_NK,
        len(labels),
    )
    seconds = time.perf_counter() - began
    logits_MK = computed["test"].astype(np.float64) @ head.weight_KD.T + head.bias_K
    own_MK = 1 / (1 + np.exp(-logits_MK))
    print(
        f"patchline: mAP {average_precision_score(tests.sets_NK, own_MK):.4f}, C "
        f"{head.regularization:g} of {len(head.tried)} tried, {seconds:.1f} s"
    )
    scaler = StandardScaler().fit(computed["train"].astype(np.float64))
    for c_used in (head.regularization, 1.0):
        began = time.perf_counter()
        one = LogisticRegression(C=c_used, max_iter=10_000, tol=1e-8, solver="newton-cholesky")
        fitted = OneVsRestClassifier(one).fit(scaler.transform(computed["train"]), training.sets_NK)
        theirs_MK = fitted.predict_proba(scaler.transform(computed["test"]))
        apart = f"{np.abs(own_MK - theirs_MK).max():.1e}" if c_used == head.regularization else "-"
        print(
            f"scikit-learn, C {c_used:g}: mAP "
            f"{average_precision_score(tests.sets_NK, theirs_MK):.4f}, largest difference of a "
            f"probability {apart}, {time.perf_counter() - began:.1f} s"
        )


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(required=True)
    making = commands.add_parser("make")
    making.add_argument("cifar", type=Path)
    making.add_argument("tiles", type=Path)
    making.add_argument("--images", type=int, default=10_000, help="for training and validation")
    making.add_argument("--tests", type=int, default=2_000)
    making.add_argument("--seed", type=int, default=0)
    making.set_defaults(do=make)
    training = commands.add_parser("torch")
    training.add_argument("tiles", type=Path)
    training.add_argument("--minutes", type=float, default=5.0, help="of training, for each side")
    training.add_argument("--seeds", type=int, default=3)
    training.add_argument("--preset", default="balanced")
    training.add_argument("--rate", type=float, default=1e-3, help="learning rate of the loops")
    sides = (*_RECIPES, _UNPLANNED)
    training.add_argument("--sides", nargs="*", choices=sides, default=list(_RECIPES))
    training.add_argument("--keep", type=Path, default=Path("multi-label-training"))
    training.set_defaults(do=compare_training)
    probing = commands.add_parser("probe")
    probing.add_argument("tiles", type=Path)
    probing.add_argument("weights", type=Path)
    probing.add_argument("--images", type=int, default=2_000)
    probing.add_argument("--tests", type=int, default=1_000)
    probing.add_argument("--keep", type=Path, default=Path("multi-label-features"))
    probing.set_defaults(do=compare_heads)
    given = parser.parse_args()
    given.do(given)


if __name__ == "__main__":
    main()
