"""Count the images of a run's splits that its initial weights have seen before."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.data import manifest as manifests
from pipeline.data.same_images import content_numbers
from pipeline.registry.version_records import lineage

if TYPE_CHECKING:
    import pandas as pd

_REPEATED = ("training.folds", "training.refit")
"""Params of a run that has trained on its validation images too."""


def seen_before(manifest_file: Path, run_id: str) -> dict[str, int] | None:
    """Return the numbers of validation and test images that the weights of a run have seen.

    The run and those that it started from count. A validation image was seen if it was trained on,
    a test image also if it was used for model selection. Images are matched by their pixels or
    their file, as in a comparison of two versions.

    Args:
        manifest_file: the manifest of the new run.
        run_id: the run that has trained the initial weights.

    Returns:
        Numbers by split, without zeros; None if the manifest of one of the runs is gone.
    """
    rows = manifests.usable(manifests.load(manifest_file))
    trained: list[pd.DataFrame] = []
    selected: list[pd.DataFrame] = []
    try:
        for params, manifest in lineage(run_id):
            usable = manifest[manifest["status"] == "ok"]
            validation = usable[usable["split"] == "validation"]
            trained.append(usable[usable["split"] == "train"])
            (trained if _is_repeated(params) else selected).append(validation)
    except OSError:
        return None
    own, *earlier = content_numbers(rows, *trained, *selected)
    fitted = set().union(*earlier[: len(trained)])
    used = {"validation": fitted, "test": fitted.union(*earlier[len(trained) :])}
    counts = {
        split: int(own[rows["split"] == split].isin(numbers).sum())
        for split, numbers in used.items()
    }
    return {split: count for split, count in counts.items() if count}


def _is_repeated(params: Mapping[str, str]) -> bool:
    return any(params.get(key) not in (None, "", "None", "False") for key in _REPEATED)
