"""Train on CIFAR-10 with a fixed number of floating-point operations, and print the accuracy.

    python -m benchmarks.accuracy_per_compute DATA --pflop 0.025 [--seed 0] [--folder FOLDER]
                                              [--recipe FILE] [SETTING=VALUE...]

DATA holds train/ and test/ with one folder of images for each class. The operations of training
are three times those of the forward pass of every image, two per multiplication, the patch
embedding included. Part of train/ is held back for validation and never trained on; the number of
images that are is printed. Settings such as model.depth=3 change the recipe. With a folder that
holds an interrupted run of the same command, the run is resumed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measured_runs import PATCHLINE, machine
from pipeline import config_files
from pipeline.config import ModelChoice
from pipeline.data import manifest
from pipeline.models.model_building import build_model
from pipeline.models.model_cost import resolved_choice
from pipeline.plugin_api import DataTraits, ImageSpec
from pipeline.training.config import TrainingConfig
from pipeline.training.progressive_size import ProgressiveSize

RECIPE = Path(__file__).parent / "recipes" / "small_images.yaml"
_SIDE, _CLASSES = 32, 10
_FORWARD_AND_BACKWARD = 3


def changed(recipe: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Return the recipe with changes such as `model.depth=3`; values are read as YAML."""
    for change in changes:
        key, _, value = change.partition("=")
        settings: Any = yaml.safe_load(value)
        for part in reversed(key.split(".")):
            settings = {part: settings}
        recipe = config_files.merged(recipe, settings)
    return recipe


def flops_per_image(recipe: dict[str, Any]) -> tuple[int, int]:
    """Return the operations of training on an image of the size at the start, and of full size."""
    import torch

    traits = DataTraits(3, _SIDE, _SIDE, _CLASSES, mirror_symmetric=True)
    trained = {**recipe["model"], "test_time_flip": False}  # training sees one view of an image
    choice = resolved_choice(ModelChoice.model_validate(trained), traits)
    image = ImageSpec(
        channels=3, height=_SIDE, width=_SIDE, mean=(0.5,) * 3, std=(0.5,) * 3, resize="crop"
    )
    model = build_model(choice, image, _CLASSES).eval()
    sizes = ProgressiveSize(TrainingConfig.model_validate(recipe["training"]), image, model)
    counts = []
    for height, width in (sizes.small_size, sizes.full_size):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            model(torch.zeros(1, 3, height, width))
        counts.append(_FORWARD_AND_BACKWARD * counter.get_total_flops())
    return counts[0], counts[1]


def flops_of(steps: int, recipe: dict[str, Any]) -> int:
    """Return the operations of a training with a number of steps."""
    training = TrainingConfig.model_validate(recipe["training"])
    small, full = flops_per_image(recipe)
    small_steps = sum((step + 0.5) / steps < training.full_size_from for step in range(steps))
    return training.batch_size * (small_steps * small + (steps - small_steps) * full)


def affordable_steps(flops: float, recipe: dict[str, Any]) -> int:
    """Return the largest number of steps within a budget."""
    training = TrainingConfig.model_validate(recipe["training"])
    small, full = flops_per_image(recipe)
    share = training.full_size_from if small < full else 0.0
    per_step = training.batch_size * (share * small + (1 - share) * full)
    return max(1, int(flops / per_step))


def main() -> None:
    """Train, or resume, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--pflop", type=float, default=0.025)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("changes", nargs="*", metavar="SETTING=VALUE")
    given = parser.parse_intermixed_args()
    recipe = changed(yaml.safe_load(given.recipe.read_text(encoding="utf-8")), given.changes)
    steps = affordable_steps(given.pflop * 1e15, recipe)
    recipe["training"]["step_plan"] = [[0, 0.0, steps]]
    folder = given.folder or Path(tempfile.mkdtemp(prefix="patchline-benchmark-"))
    summary = _trained(folder, given.data.resolve(), recipe, given.seed)
    accuracy = summary["metrics"]["test/accuracy"]
    print(machine())
    print(
        f"{flops_of(steps, recipe) / 1e15:.4f} PFLOP, seed {given.seed}: test accuracy "
        f"{accuracy['value']:.2%} ({accuracy['low']:.2%} to {accuracy['high']:.2%}) of "
        f"{accuracy['n']}; {steps} steps of {recipe['training']['batch_size']} of "
        f"{_training_images(summary):,} images"
    )


def _trained(folder: Path, data: Path, recipe: dict[str, Any], seed: int) -> dict[str, Any]:
    """Run `patchline run`, or resume the run that the folder holds; return its summary."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipe.yaml"
    if file.exists():
        arguments = ["--resume", "last"]
    else:
        file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        arguments = [str(data), "--config", str(file), "--seed", str(seed)]
    done = subprocess.run(
        [str(PATCHLINE), "run", *arguments, "--json"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def _training_images(summary: dict[str, Any]) -> int:
    job = json.loads((Path(summary["config"]).parent / "training/job.json").read_text("utf-8"))
    rows = manifest.usable(manifest.load(Path(job["manifest_file"])))
    return int((rows["split"] == "train").sum())


if __name__ == "__main__":
    main()
