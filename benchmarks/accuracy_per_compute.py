"""Train on CIFAR-10 with a fixed number of floating-point operations, and print the accuracy.

    python -m benchmarks.accuracy_per_compute DATA --pflop 0.025 [--seed 0] [--folder FOLDER]
                                              [--recipe FILE | --preset NAME] [SETTING=VALUE...]

DATA holds train/ and test/ with one folder of images for each class. The operations of training
are three times those of the forward pass of every image, two per multiplication, the patch
embedding included. Part of train/ is held back for validation and never trained on; the number of
images that are is printed. Settings such as model.depth=3 change the recipe. With a preset, the
recipe is its plan for the number of epochs that the operations allow. With a folder that holds an
interrupted run of the same command, the run is resumed.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measured_runs import PATCHLINE, machine
from patchline.pipeline import config_files
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.data.manifests import manifest
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_cost import resolve_choice
from patchline.pipeline.training.config import FULL_SIZE_FROM, TrainingConfig
from patchline.pipeline.training.recipe.progressive_learning import ProgressiveSize
from patchline.plugin_api import DataTraits, ImageSpec

RECIPE = Path(__file__).parent / "recipes" / "small_images.yaml"
_SIDE, _CLASSES = 32, 10
_FORWARD_AND_BACKWARD = 3
_TOO_MANY_EPOCHS = 200


def change_recipe(recipe: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Return the recipe with changes such as `model.depth=3`; values are read as YAML."""
    for key, value in _pairs(changes):
        settings: Any = yaml.safe_load(value)
        for part in reversed(key.split(".")):
            settings = {part: settings}
        recipe = config_files.merge_settings(recipe, settings)
    return recipe


def flops_per_image(recipe: dict[str, Any]) -> tuple[int, int]:
    """Return the operations of training on an image of the size at the start, and of full size."""
    import torch

    traits = DataTraits(3, _SIDE, _SIDE, _CLASSES, mirror_symmetric=True)
    trained = {**recipe["model"], "test_time_flip": False}  # training sees one view of an image
    choice = resolve_choice(ModelChoice.model_validate(trained), traits)
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
    """Return the operations of a training run with a number of steps."""
    training = TrainingConfig.model_validate(recipe["training"])
    small, full = flops_per_image(recipe)
    small_steps = sum((step + 0.5) / steps < FULL_SIZE_FROM for step in range(steps))
    return training.batch_size * (small_steps * small + (steps - small_steps) * full)


def affordable_steps(flops: float, recipe: dict[str, Any]) -> int:
    """Return the largest number of steps within a budget."""
    training = TrainingConfig.model_validate(recipe["training"])
    small, full = flops_per_image(recipe)
    share = FULL_SIZE_FROM if small < full else 0.0
    per_step = training.batch_size * (share * small + (1 - share) * full)
    return max(1, int(flops / per_step))


def plan_preset(
    folder: Path, data: Path, preset: str, flops: float, changes: list[str]
) -> dict[str, Any]:
    """Return the plan of a preset for nearly as many epochs as a number of operations allows."""
    low, high = 0, _TOO_MANY_EPOCHS
    best: dict[str, Any] = {}
    while high - low > 1:
        epochs = max(low + 1, round((max(low, 1) * high) ** 0.5))
        recipe, images = _plan(folder, data, preset, epochs, changes)
        if epochs * images <= affordable_steps(flops, recipe) * recipe["training"]["batch_size"]:
            low, best = epochs, recipe
        else:
            high = epochs
    if not best:
        raise SystemExit(f"No plan of {preset} takes {flops:.2g} operations. Allow more of them.")
    del best["training"]["epochs"]
    return best


def _plan(
    folder: Path, data: Path, preset: str, epochs: int, changes: list[str]
) -> tuple[dict[str, Any], int]:
    """Return a plan as a recipe, and the number of training images."""
    settings = [f"--{key.replace('_', '-')}={value}" for key, value in _pairs(changes)]
    settings += [f"--preset={preset}", f"--training.epochs={epochs}", "--dry-run"]
    done = subprocess.run(
        [str(PATCHLINE), "run", str(data), *settings],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    images = re.findall(r"^# ([\d,]+) training images", done.stdout, re.MULTILINE)[0]
    return yaml.safe_load(done.stdout), int(images.replace(",", ""))


def _pairs(changes: list[str]) -> list[tuple[str, str]]:
    """Return the keys and values of changes such as `model.depth=3`."""
    return [(key, value) for key, _, value in (change.partition("=") for change in changes)]


def main() -> None:
    """Train, or resume, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--pflop", type=float, default=0.025)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    recipes = parser.add_mutually_exclusive_group()
    recipes.add_argument("--recipe", type=Path, default=RECIPE)
    recipes.add_argument("--preset")
    parser.add_argument("changes", nargs="*", metavar="SETTING=VALUE")
    given = parser.parse_intermixed_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="patchline-benchmark-"))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "recipe.yaml"
    if file.exists():
        recipe = yaml.safe_load(file.read_text(encoding="utf-8"))
        arguments = ["--resume", "last"]
    else:
        recipe = _recipe(folder, given)
        file.write_text(yaml.safe_dump(recipe), encoding="utf-8")
        data = str(given.data.resolve())
        arguments = [data, "--config", str(file), "--seed", str(given.seed)]
    steps = recipe["record"]["step_plan"][0][2]
    summary = _train(folder, arguments)
    accuracy = summary["metrics"]["test/accuracy"]
    print(machine())
    print(
        f"{flops_of(steps, recipe) / 1e15:.4f} PFLOP, seed {given.seed}: test accuracy "
        f"{accuracy['value']:.2%} ({accuracy['low']:.2%} to {accuracy['high']:.2%}) of "
        f"{accuracy['n']}; {steps} steps of {recipe['training']['batch_size']} of "
        f"{_training_images(summary):,} images"
    )


def _recipe(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Return what to train, with the number of steps that the operations allow."""
    flops = given.pflop * 1e15
    if given.preset:
        recipe = plan_preset(folder, given.data.resolve(), given.preset, flops, given.changes)
    else:
        recipe = change_recipe(
            yaml.safe_load(given.recipe.read_text(encoding="utf-8")), given.changes
        )
    recipe["record"] = {"step_plan": [[0, 0.0, affordable_steps(flops, recipe)]]}
    recipe["preset"] = "none"
    return recipe


def _train(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run `patchline run`, and return its summary."""
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
