"""The head alone, the last blocks after it, and scikit-learn's probe, by labels a class.

python -m benchmarks.fine_tuning FOLDER WEIGHTS [--device cuda] [--pixels 224]
    [--labels 8 20 50 150] [--draws 5] [--tests 1000] [--blocks 4] [--epochs 6] [--rate 2e-4]
    [--keep DIR]

FOLDER holds `train` and `test`, each with a folder for every class, such as CIFAR-10; WEIGHTS is a
file of trained weights. Every draw takes other training images, some of which become validation
images as in any run; the test images are the same for all. Head and last blocks are those of one
training with `training.trainable last_blocks`, which fits the head first. scikit-learn's
LogisticRegression gets the same features of the same training images, raw and standardized, with
its own C of 1. Printed are the accuracies on the test images, the share of the way from the head
to the trained weights, and the seconds beyond the features and tokens.

All features are kept in DIR, so a second command computes new ones only.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.frozen_networks import choose_images
from benchmarks.measured_runs import machine
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.training.__main__ import train
from patchline.pipeline.training.initial_weights.starting_point import find_starting_point
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.launching import job_of
from patchline.pipeline.training.parts.probe import build_frozen_network
from patchline.pipeline.training.start import HEAD_FOLDER
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers.event_log import EventWriter, read_events

Array = np.ndarray[Any, Any]


class Outcome(NamedTuple):
    """What one draw gave: accuracies on the test images."""

    head: float
    last_blocks: float
    raw: float
    standardized: float
    share: float
    """Of the way from the head to the trained weights."""
    validated: int
    """Images that decided the share."""
    seconds: float
    """Beyond features and tokens."""


def job_for(given: argparse.Namespace, images: Path, name: str) -> TrainingJob:
    """Return the job of training the last blocks on a folder of images."""
    workspace = (given.keep / ".patchline").resolve()
    workspace.mkdir(parents=True, exist_ok=True)
    training: dict[str, Any] = {"trainable": "last_blocks", "device": given.device}
    lengths = {"last_blocks": given.blocks, "epochs": given.epochs}
    training |= {setting: value for setting, value in lengths.items() if value is not None}
    flags: dict[str, Any] = {
        "name": "fine-tuning",
        "data": {"source": "image_folder", "path": str(images), "image_size": given.pixels},
        "model": {"init": str(given.weights.resolve())},
        "training": training,
    }
    if given.rate is not None:
        flags["optimizer"] = {"learning_rate": given.rate}
    config = config_files.build_config(None, preset_name="none", flags=flags)
    data = ingestion.ingest(config, workspace)
    start = find_starting_point(config, data.name, workspace, data.manifest_file, data.classes)
    config = ingestion.resolve(start.config, data)
    prepared = ingestion.prepare(config, data, workspace)
    folder = (given.keep / "runs" / name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    return job_of(config, data, prepared, folder, name, workspace)


def outcome_of(job: TrainingJob) -> Outcome:
    """Train, and classify the test images with all sides."""
    events = EventWriter(job.folder / "events.jsonl")
    began = time.monotonic()
    result = train(job, events)
    seconds = time.monotonic() - began - _seconds_before_steps(job)
    if not isinstance(result, TrainResult) or result.fine_tuning is None:
        raise TypeError("the last blocks were not trained")
    frozen = build_frozen_network(
        job.model_copy(update={"folder": job.folder / HEAD_FOLDER}),
        EventWriter(job.folder / HEAD_FOLDER / "events.jsonl"),
    )
    rows = manifests.usable(manifests.load(job.manifest_file))
    tests = np.flatnonzero(rows["split"] == "test")
    labels_N, features_ND = frozen.data.labels, np.asarray(frozen.features_ND)
    weights = load_model(job.folder / HEAD_FOLDER / "best")[0].state_dict()
    names = [name for name in weights if name.startswith("head.")]
    weight_KD, bias_K = (
        next(weights[name].numpy() for name in names if name.endswith(end))
        for end in (".weight", ".bias")
    )
    model, description = load_model(result.best)
    logits_NK = predict_logits(
        model.to(frozen.device),
        frozen.data.images,
        tests,
        description.image,
        device=frozen.device,
        precision=frozen.precision.name,
    ).numpy()
    training = frozen.data.training.rows
    raw, standardized = _theirs(
        *(features_ND[training], labels_N[training]), *(features_ND[tests], labels_N[tests])
    )
    return Outcome(
        head=_accuracy(features_ND[tests] @ weight_KD.T + bias_K, labels_N[tests]),
        last_blocks=_accuracy(logits_NK, labels_N[tests]),
        raw=raw,
        standardized=standardized,
        share=result.fine_tuning.share,
        validated=result.fine_tuning.images,
        seconds=seconds,
    )


def _seconds_before_steps(job: TrainingJob) -> float:
    """Return how long features and tokens took, by the times of their progress."""
    total = 0.0
    for unit in ("features", "tokens"):
        times = [
            event["time"]
            for event in read_events(job.folder / "events.jsonl")
            if event.get("unit") == unit
        ]
        total += times[-1] - times[0] if times else 0.0
    return total


def _accuracy(logits_NK: Array, labels_N: Array) -> float:
    return float((logits_NK.argmax(1) == labels_N).mean())


def _theirs(features_ND: Array, labels_N: Array, test_MD: Array, tests_M: Array) -> list[float]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    raw = LogisticRegression(max_iter=5000)
    standardized = make_pipeline(StandardScaler(), LogisticRegression(max_iter=5000))
    return [
        float(each.fit(features_ND, labels_N).score(test_MD, tests_M))
        for each in (raw, standardized)
    ]


def images_of_draw(given: argparse.Namespace, labels: int, seed: int) -> Path:
    """Link the images of a draw into a folder of their own, with the test images."""
    folder: Path = given.keep / f"images-{labels}-{seed}-{given.tests}"
    shutil.rmtree(folder, ignore_errors=True)
    classes = sorted(each.name for each in (given.folder / "train").iterdir() if each.is_dir())
    for split, count, own_seed in (
        ("train", labels, seed),
        ("test", given.tests // len(classes), 0),
    ):
        chosen = choose_images(given.folder / split, classes, [count] * len(classes), own_seed)
        for number, (file, label) in enumerate(zip(chosen.files, chosen.labels_N, strict=True)):
            link = folder / split / classes[label] / f"{number}{file.suffix}"
            link.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, link)
    return folder


def main() -> None:
    """Print each draw, and a table of the means."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("weights", type=Path)
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda", "mps"])
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--labels", type=int, nargs="+", default=[8, 20, 50, 150])
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--tests", type=int, default=1000, help="test images of all classes")
    parser.add_argument("--blocks", type=int, help="training.last_blocks")
    parser.add_argument("--epochs", type=int, help="training.epochs")
    parser.add_argument("--rate", type=float, help="optimizer.learning_rate")
    parser.add_argument("--keep", type=Path, default=Path("fine_tuning_benchmark"))
    given = parser.parse_args()
    quiet_libraries.apply()
    print(
        f"{machine()}; {_device()}; weights {given.weights.name}, {given.pixels} pixels", flush=True
    )
    table = []
    for labels in given.labels:
        outcomes = []
        for seed in range(given.draws):
            name = f"{labels}-{seed}"
            job = job_for(given, images_of_draw(given, labels, seed), name)
            outcomes.append(outcome_of(job))
            shutil.rmtree(job.folder)
            _print_draw(labels, seed, outcomes[-1])
        table.append((labels, outcomes))
    print("\n| labels a class | head | last blocks | difference | scikit-learn, raw | standardized "
          "| share | seconds |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for labels, outcomes in table:
        print(_row(labels, outcomes))


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def _print_draw(labels: int, seed: int, each: Outcome) -> None:
    print(
        f"{labels} labels a class, draw {seed}: head {each.head:.1%}, last blocks "
        f"{each.last_blocks:.1%} at {each.share:.0%} of the way (decided by {each.validated} "
        f"images), scikit-learn {each.raw:.1%} raw, {each.standardized:.1%} standardized; "
        f"{each.seconds:.0f} s beyond features and tokens",
        flush=True,
    )


def _row(labels: int, outcomes: list[Outcome]) -> str:
    head, blocks, raw, standardized, share, _, seconds = (
        statistics.fmean(values) for values in zip(*outcomes, strict=True)
    )
    differences = [each.last_blocks - each.head for each in outcomes]
    spread = f" ± {100 * statistics.stdev(differences):.1f}" if len(differences) > 1 else ""
    return (
        f"| {labels} | {head:.1%} | {blocks:.1%} | {100 * statistics.fmean(differences):+.1f}"
        f"{spread} | {raw:.1%} | {standardized:.1%} | {share:.0%} | {seconds:.0f} |"
    )


if __name__ == "__main__":
    main()
