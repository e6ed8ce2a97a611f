"""Ask once, on a terminal, whether to download the weights that few photographs gain most from."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig

_OPENED = 9
"""Images whose sizes are looked at."""
_MEGABYTES = 350
_QUESTION = (
    "{images:,} photographs and no pre-trained weights on this machine: published weights would "
    "help most\n({name}, about {megabytes} MB from {owner}; with `--model.init none`, you are "
    "not asked). Download now? [y/N] "
)


def with_weights(config: RunConfig, ask: Callable[[str], str] | None = None) -> RunConfig:
    """Return the config with the weights to download, if a person wants that.

    Args:
        config: of a new run.
        ask: asks a question and returns the answer; by default on the terminal, if the command has
            no other input or output.
    """
    if ask is None:
        if not all(end.isatty() for end in (sys.stdin, sys.stdout, sys.stderr)):
            return config
        ask = _read_answer
    images = _photographs(config)
    if not images:
        return config
    from patchline.pipeline.planning.planner import may_choose_weights
    from patchline.pipeline.planning.weights_choice import weights_to_fetch
    from patchline.pipeline.registry import registered_models
    from patchline.pipeline.training.initial_weights import local_weights

    there = local_weights.search(config.name or "") if may_choose_weights(config) else None
    if there is None or there.weights:
        return config
    if there.registered and any(each.is_encoder for each in registered_models.newest_versions()):
        return config  # the plan may start from it
    name = weights_to_fetch()
    owner = "Hugging Face" if name.startswith("timm") else "PyTorch"
    question = _QUESTION.format(images=images, name=name, megabytes=_MEGABYTES, owner=owner)
    if ask(question).strip().lower() not in ("y", "yes"):
        return config
    settings = {"model": {"init": name, "download": True}}
    merged = config_files.merged(config.model_dump(mode="json", exclude_unset=True), settings)
    return config_files.validated(merged)


def _photographs(config: RunConfig) -> int:
    """Return how many photographs a folder holds; 0 if they are many, small, or not in a folder."""
    from PIL import Image

    from patchline.pipeline.planning.weights_choice import are_few_photographs
    from patchline.pipeline.workspace.files.data_names import IMAGE_SUFFIXES
    from patchline.pipeline.workspace.files.folder_walk import walk_files

    folder = Path(config.data.path or "").expanduser()
    if config.data.path is None or not folder.is_dir():
        return 0
    files: list[str] = []
    for each in walk_files(folder, on_unreadable=lambda _path, _error: None):
        if Path(each.path).suffix.lower() in IMAGE_SUFFIXES:
            files.append(each.path)
        if not are_few_photographs(len(files), math.inf):
            return 0
    sides = []
    for file in files[:: max(1, len(files) // _OPENED)][:_OPENED]:
        try:
            with Image.open(folder / file) as image:
                sides.append(min(image.size))
        except (OSError, ValueError, Image.DecompressionBombError):
            continue
    few = bool(sides) and are_few_photographs(len(files), statistics.median(sides))
    return len(files) if few else 0


def _read_answer(question: str) -> str:
    """Return the answer of a person, or none."""
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline()
