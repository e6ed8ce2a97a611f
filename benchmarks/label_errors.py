"""How many planted label errors a model finds among the images that it was trained on.

python -m benchmarks.label_errors [FOLDER] [--share 0.03] [--preset quick] [--seed 0] [--folds N]

Without FOLDER, the built-in digits. A share of the images of each class folder is put into another
class, at random; `patchline run` trains on the result, and `patchline data inspect --check-labels`
searches it, with N folds by models that were not trained on the images that they judge. Images that
the model just predicts wrongly are counted beside what is reported.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

import patchline
from benchmarks.measured_runs import machine
from pipeline import config_files, quiet_libraries
from pipeline.data import ingestion


def main() -> None:
    """Print what was reported of what was planted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--share", type=float, default=0.03)
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folds", type=int)
    asked = parser.parse_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    source = asked.folder and asked.folder.resolve()
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        os.chdir(name)
        if source is None:
            ingestion.ingest(config_files.validated({}), Path("digits"))
            [source] = Path("digits/sources").iterdir()
        planted = plant(source, Path("planted"), asked.share, asked.seed)
        options = {"options": {"mirror_symmetric": False}} if asked.folder is None else {}
        trained = patchline.run(
            "planted",
            preset=asked.preset,
            seed=asked.seed,
            data=options,
            training={"folds": asked.folds},
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


if __name__ == "__main__":
    main()
