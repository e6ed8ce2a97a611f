"""How many wrong labels are found: planted ones by a run's model, and beside cleanlab's rules.

python -m benchmarks.label_errors planted [FOLDER] [--share 0.03] [--preset quick] [--seed 0]
                                          [--folds N]
python -m benchmarks.label_errors rules [--share 0.03] [--seeds 3]

`planted` puts a share of the images of each class folder (of the built-in digits without FOLDER)
into another class, at random; `patchline run` trains on the result, and `patchline data inspect
--check-labels` searches it, with N folds by models that were not trained on the images that they
judge. Images that the model just predicts wrongly are counted beside what is reported.

`rules` replaces a share of the labels of the digits at random. Logistic regression predicts every
image in five folds, and the rule that finds likely label errors gets the same probabilities as
cleanlab's rules. cleanlab is no dependency: `pip install cleanlab`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import patchline
from benchmarks.measured_runs import machine
from patchline.pipeline import config_files, quiet_libraries
from patchline.pipeline.data import ingestion
from patchline.pipeline.evaluation.inspection.label_errors import likely_labels


def find_planted(given: argparse.Namespace) -> None:
    """Print what was reported of what was planted."""
    source = given.folder and given.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        os.chdir(name)
        if source is None:
            ingestion.ingest(config_files.validate_config({}), Path("digits"))
            [source] = Path("digits/sources").iterdir()
        planted = plant(source, Path("planted"), given.share, given.seed)
        options = {"options": {"mirror_symmetric": False}} if given.folder is None else {}
        trained = patchline.run(
            "planted",
            preset=given.preset,
            seed=given.seed,
            data=options,
            training={"folds": given.folds},
        )
        print(f"test accuracy, wrong labels included: {trained.metrics['test/accuracy'].value:.1%}")
        found = patchline.inspect_data("planted", check_labels="planted", out="report")
        files: Sequence[str] = next(
            (each.files for each in found.findings if each.kind == "label_error"), ()
        )
        every = sorted(file.relative_to("planted") for file in Path("planted").glob("*/*"))
        print(f"{len(planted)} of {len(every):,} labels are wrong")
        print(_score("reported", [Path(file) for file in files], planted))
        half = [Path(file) for file in files[: len(planted) // 2]]
        print(_score("  the surest half as many", half, planted))
        table = patchline.load("planted").predict([Path("planted") / file for file in every])
        labels = [file.parent.name for file in every]
        other = [
            file for file, own, said in zip(every, labels, table["label"], strict=True)
            if own != said
        ]  # fmt: skip
        print(_score("predicted as another class", other, planted))


def plant(source: Path, target: Path, share: float, seed: int) -> set[Path]:
    """Copy class folders, and put a share of their images into other classes.

    Args:
        source: has a folder for each class.
        target: the new folder.
        share: of the images.
        seed: draws the images and their new classes.

    Returns:
        The new paths of the images with wrong labels, relative to the new folder.
    """
    generator = np.random.default_rng(seed)
    classes = sorted(folder.name for folder in source.iterdir() if folder.is_dir())
    wrong = set()
    for file in sorted(source.glob("*/*")):
        own = classes.index(file.parent.name)
        shift = int(generator.integers(1, len(classes))) if generator.random() < share else 0
        place = Path(classes[(own + shift) % len(classes)]) / f"{own}-{file.name}"
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / place)
        if shift:
            wrong.add(place)
    return wrong


def _score(name: str, files: Sequence[Path], planted: Collection[Path]) -> str:
    right = sum(file in planted for file in files)
    share = f"{right / len(files):.1%}" if files else "none"
    return (
        f"{name}: {len(files)} images; {right / len(planted):.1%} of the wrong ones, {share} right"
    )


Array = np.ndarray[Any, Any]
Rule = Callable[[Array, Array], Array]
_RULES = (
    "prune_by_class",
    "prune_by_noise_rate",
    "both",
    "confident_learning",
    "low_self_confidence",
)


def compare_rules(given: argparse.Namespace) -> None:
    """Print what each rule reports of the wrong labels, as means over the seeds."""
    found: dict[str, list[Array]] = defaultdict(list)
    for seed in range(given.seeds):
        wrong, labels, probabilities = _predict(given.share, seed)
        for name, rule in _rules():
            began = time.perf_counter()
            reported = rule(labels, probabilities)
            took = time.perf_counter() - began
            right = (reported & wrong).sum()
            measured = [reported.sum(), right / wrong.sum(), right / max(1, reported.sum()), took]
            found[name].append(np.array(measured))
    print(f"{given.share:.0%} of {len(wrong):,} labels are wrong, {given.seeds} seeds")
    for name, values in found.items():
        reported, recall, precision, took = np.mean(values, axis=0)
        print(
            f"{name:30} {reported:6.1f} reported; {recall:.1%} of the wrong ones, "
            f"{precision:.1%} right; {took * 1e3:.1f} ms"
        )


def _predict(share: float, seed: int) -> tuple[Array, Array, Array]:
    """Return which labels are wrong (N,), the labels (N,), and the probabilities (N, 10)."""
    pixels, true = load_digits(return_X_y=True)
    generator = np.random.default_rng(seed)
    wrong = generator.random(len(true)) < share
    labels = np.where(wrong, (true + generator.integers(1, 10, len(true))) % 10, true)
    model = LogisticRegression(C=0.01, max_iter=300)
    said = cross_val_predict(model, pixels / 16, labels, cv=5, method="predict_proba")
    return wrong, labels, said


def _rules() -> Iterator[tuple[str, Rule]]:
    def own(labels: Array, probabilities: Array) -> Array:
        likely, _ = likely_labels(labels, probabilities, np.zeros(len(labels), np.bool_))
        changed: Array = likely != labels
        return changed

    yield "Patchline", own
    try:
        from cleanlab.filter import find_label_issues
    except ImportError:
        print("cleanlab is not installed; only Patchline's rule is measured")
        return
    for name in _RULES:
        yield f"cleanlab, {name}", partial(find_label_issues, filter_by=name, n_jobs=1)


def main() -> None:
    """Measure what the command names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(required=True)
    planted, rules = commands.add_parser("planted"), commands.add_parser("rules")
    for command in (planted, rules):
        command.add_argument("--share", type=float, default=0.03, help="of wrong labels")
    planted.add_argument("folder", nargs="?", type=Path)
    planted.add_argument("--preset", default="quick")
    planted.add_argument("--seed", type=int, default=0)
    planted.add_argument("--folds", type=int)
    planted.set_defaults(measure=find_planted)
    rules.add_argument("--seeds", type=int, default=3)
    rules.set_defaults(measure=compare_rules)
    given = parser.parse_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    given.measure(given)


if __name__ == "__main__":
    main()
