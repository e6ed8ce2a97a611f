"""A registered version as the judge of labels, for `patchline data inspect --check-labels`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from patchline.pipeline.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

    from patchline.pipeline.evaluation.inspection.inspecting import Judge
    from patchline.pipeline.evaluation.inspection.label_errors import Judgement


def version_judge(
    model: str, workspace: Path, on_progress: Callable[[str, int, int], None]
) -> Judge:
    """Return a function that predicts the labels of images with a registered version.

    Args:
        model: names the version, as the command's MODEL does.
        workspace: where decoded images are cached.
        on_progress: called while images are decoded and predicted.

    Raises:
        ModelReferenceError: if there is no such version, or its files are gone.
    """
    import numpy as np
    import pandas as pd

    from patchline.pipeline.data.labels.label_pairs import label_pairs
    from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
    from patchline.pipeline.data.manifests.manifest import task_of
    from patchline.pipeline.registry import version_evaluation
    from patchline.pipeline.registry.registered_models import resolve
    from patchline.pipeline.registry.version_records import available_records

    records = available_records(resolve(model))
    package = records.package

    def judged(rows: pd.DataFrame, root: Path) -> Judgement:
        from patchline.pipeline.evaluation.inspection.label_errors import Judgement

        task = task_of(rows)
        if (task == MULTI_LABEL) != package.is_multi_label:
            answers = "a set of labels" if package.is_multi_label else "one class"
            raise DataError(
                f"--check-labels {model}: this model predicts {answers} for each image, but the "
                f"labels of the data are {task}. Choose a model of the same task, or set data.task."
            )
        pairs = label_pairs(rows["label"], task)
        left_out = sorted(set(pairs.names) - set(package.classes))
        own = rows["label"].isin(package.classes)
        if task == MULTI_LABEL:  # the other labels of an image can be checked
            own = pd.Series(len(left_out) < len(pairs.names), index=rows.index)
        if not own.any():
            raise DataError(
                f"--check-labels {model}: no image of the data has a class of this model "
                f"({', '.join(package.classes[:5])}, …). Choose a model of the same classes."
            )
        checked = rows[own].reset_index(drop=True)
        probabilities_NK = np.empty((len(checked), len(package.classes)), np.float32)
        left = np.ones(len(checked), np.bool_)
        for row, sha256 in enumerate(checked["sha256"]):
            if sha256 in records.of_folds:
                probabilities_NK[row], left[row] = records.of_folds[sha256], False
        others = checked[left].reset_index(drop=True)
        if len(others):
            images = version_evaluation.prepared_images(
                package, others, root, workspace, on_progress
            )
            probabilities_NK[left] = version_evaluation.predicted(package, images, on_progress)
        is_seen = records.has_seen(checked) if records.is_recorded else None
        version = f"version {records.reference.version} of {records.reference.name}"
        return Judgement(
            model=version,
            caveat=records.provenance.summary.caveat(version, "these images", "its predictions"),
            classes=tuple(package.classes),
            paths=tuple(checked["path"]),
            probabilities_NK=probabilities_NK,
            seen_N=None if is_seen is None else is_seen.to_numpy(bool) & left,
            by_folds=int((~left).sum()),
            left_out=tuple(left_out),
        )

    return judged
