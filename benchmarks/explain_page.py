"""Write pages of the visual guide and open them in Chromium; print sizes and times.

    python -m benchmarks.explain_page [--cases digits vit-b vit-b-1024]

The models have random weights, which are as large and as slow as trained ones; their pages are
rather larger, since noise is hard to compress. A photograph of 500x375 random pixels is explained
with and without covering parts of it. `first picture` is Chromium's first contentful paint,
`interaction` the median time from a key that picks the next patch to the next frame.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.measured_runs import machine
from patchline.pipeline.config import ModelChoice
from patchline.pipeline.evaluation.visual_guide.explaining import explain
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.models.model_description import ModelDescription, describe_plugins
from patchline.pipeline.models.model_files import save_model
from patchline.plugin_api import ImageSpec
from tests.browser.chromium import browser, missing

CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    # side, channels, model
    "digits": (8, 1, {"size": "micro", "patch_embedding": {"name": "linear", "patch_size": 2}}),
    "vit-b": (224, 3, {"size": "b", "patch_embedding": {"name": "linear", "patch_size": 16}}),
    "vit-b-1024": (512, 3, {"size": "b", "patch_embedding": {"name": "linear", "patch_size": 16}}),
}
_FIRST_PICTURE = """
    const paints = performance.getEntriesByName('first-contentful-paint');
    arguments[0](paints.length ? paints[0].startTime : null);
"""
_INTERACTION = """
    const done = arguments[0];
    const map = document.querySelector('#softmax [role=slider]');
    const start = performance.now();
    map.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight', bubbles: true}));
    requestAnimationFrame(() => setTimeout(() => done(performance.now() - start)));
"""
_PRESSES = 15


def _save(case: str, folder: Path) -> None:
    """Save a model with random weights."""
    side, channels, settings = CASES[case]
    mean, std = (0.5,) * channels, (0.25,) * channels
    image = ImageSpec(channels=channels, height=side, width=side, mean=mean, std=std, resize="crop")
    choice = ModelChoice.model_validate({"name": "vit", **settings})
    classes = tuple(f"class {number}" for number in range(10))
    model = build_model(choice, image, len(classes)).eval()
    plugins = describe_plugins(choice)
    folder.mkdir()
    save_model(
        folder,
        model,
        ModelDescription(model=choice, plugins=plugins, classes=classes, image=image),
    )


def _measure_writing(folder: Path, photo: Path, page: Path, *, occlusion: bool) -> str:
    start, before = time.perf_counter(), sum(os.times()[:2])
    explain(folder, [(photo, None)], page, "random weights", occlusion=occlusion)
    seconds, processor = time.perf_counter() - start, sum(os.times()[:2]) - before
    return f"{seconds:.1f} s ({processor:.1f} s of processor time)"


def _measure_opening(page: Path) -> str:
    why = missing()
    if why:
        return f"not opened: {why}"
    with browser(1280, 900) as window:
        window.open(f"file://{page}", "Which patches would change")
        window.wait_for("[data-ready=true]")
        first = window.answer_of(_FIRST_PICTURE)
        presses = [window.answer_of(_INTERACTION) for _ in range(_PRESSES)]
        console = window.console()
    return (
        f"first picture {first:.0f} ms, interaction {median(presses):.0f} ms "
        f"(largest {max(presses):.0f}), {len(console)} messages in the console"
    )


def main() -> None:
    """Print a line for each page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    cases = parser.parse_args().cases
    print(machine())
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as scratch:
        photo = Path(scratch) / "photo.jpg"
        noise = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
        Image.fromarray(noise).save(photo)
        for case in cases:
            folder, page = Path(scratch) / case, Path(scratch) / f"{case}.html"
            _save(case, folder)
            alone = _measure_writing(folder, photo, page, occlusion=False)
            covered = _measure_writing(folder, photo, page, occlusion=True)
            print(
                f"{case}: {page.stat().st_size / 1e6:.2f} MB; {alone} without occlusion, {covered} "
                f"with it; {_measure_opening(page)}"
            )


if __name__ == "__main__":
    main()
