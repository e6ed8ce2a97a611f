"""Fit a learner on nested shares of the training images: `python -P -m MODULE FOLDER`.

Of a draw, an eighth of the images is part of its quarter, and that of its half. Images that belong
together (one group, copies) are in the same shares, and each class has its part of each share. All
fits are tested on the same images. Each is kept once it is tested, so a process that is killed
repeats none, and continues the one that it trained.

Shapes: N images of the store, n training images, M test images.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from patchline.pipeline.data.labels.label_sets import label_pairs
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.same_images import FILE, GROUP, column_of, units_of
from patchline.pipeline.data.splits.stratification import NEW, Stratum, chance_of, stratify
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import Worker
from patchline.pipeline.workspace.files.atomic_files import open_replacing

if TYPE_CHECKING:
    import pandas as pd

Integers = np.ndarray[Any, np.dtype[np.int64]]
SHARES = (1 / 8, 1 / 4, 1 / 2, 1.0)
DRAWS = 3
_PARTS = (1 / 8, 1 / 8, 1 / 4, 1 / 2)
"""What each share has more than the one before."""
_LEFT_OUT = "left out"
"""The split of training images outside a share."""


class Fit(NamedTuple):
    """One fit."""

    share: int
    """Index of its share in `SHARES`."""
    draw: int
    """Number of the draw, from 0."""

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"fit-{self.share}-{self.draw}"


class FittingJob(FrozenModel):
    """The learner, and the images of which it gets shares."""

    training: TrainingJob
    """The fit on all training images; its folder receives the results."""
    only_head: bool
    """Whether a head is fitted on frozen features; otherwise all weights are trained."""

    @property
    def fits(self) -> list[Fit]:
        """All fits, the smallest shares first; a head on all images is the same in each draw."""
        every = [Fit(share, draw) for share in range(len(SHARES)) for draw in range(DRAWS)]
        return every[: 1 - DRAWS] if self.only_head else every


class FittedShares(FrozenModel):
    """The results of all fits."""

    sizes: tuple[int, ...]
    """Number of training images of each fit, on average over the draws of its share."""
    files: tuple[Path, ...]
    """File with the predicted class of each test image (M,), of each fit."""


FITTING = Worker(f"{__package__}.fitting", FittingJob, FittedShares)


def draw_shares(rows: pd.DataFrame, seed: int) -> Integers:
    """Return the smallest share that has each image (n), as an index of `SHARES`.

    A class with few images is in the smallest share first.

    Args:
        rows: the training images of a manifest.
        seed: the seed of the draw.
    """
    units = units_of(rows)
    keys = column_of(rows, GROUP).where(column_of(rows, GROUP) != "", column_of(rows, FILE))
    first = keys.reset_index(drop=True).groupby(units).min()
    numbers = np.array([chance_of(f"share:{seed}:{key}") for key in first])
    pairs = label_pairs(rows["label"], manifests.task_of(rows))
    stratum = Stratum(units, pairs, np.full(len(rows), NEW), numbers)
    return stratify(stratum, _PARTS, important=range(len(_PARTS)))[units]


@dataclass(frozen=True)
class ShareFits:
    """The fits of a job.

    Attributes:
        job: the learner.
        events: gets notes and progress.
        rows: all usable images.
    """

    job: FittingJob
    events: EventWriter
    rows: pd.DataFrame

    def run(self) -> FittedShares:
        """Do the fits that are not kept yet."""
        own, folder, fits = self.job.training, self.job.training.folder, self.job.fits
        train = np.flatnonzero(self.rows["split"] == "train")
        drawn = [
            draw_shares(self.rows.iloc[train], own.config.seed + draw) for draw in range(DRAWS)
        ]
        shares = [train[drawn[each.draw] <= each.share] for each in fits]
        files = [folder / f"{each.name}.npy" for each in fits]
        predict: Callable[[Fit, Integers], Integers] | None = None
        for done, (fit, rows, file) in enumerate(zip(fits, shares, files, strict=True), 1):
            if not file.is_file():
                predict = predict or self.predictor()
                predicted_M = predict(fit, rows)
                with open_replacing(file) as opened:
                    np.save(opened, predicted_M, allow_pickle=False)
            self.events.progress(done, len(fits), "share")
        sizes = [round(np.mean([(each <= fit.share).sum() for each in drawn])) for fit in fits]
        return FittedShares(sizes=tuple(sizes), files=tuple(files))

    def predictor(self) -> Callable[[Fit, Integers], Integers]:
        """Return what does a fit on some rows (n), and predicts the test images (M)."""
        return self._head() if self.job.only_head else self._train

    @property
    def _tested(self) -> Integers:
        return np.flatnonzero(self.rows["split"] == "test")

    def _head(self) -> Callable[[Fit, Integers], Integers]:
        """Return what fits a head on the features of some rows; these are computed once."""
        from patchline.pipeline.training.parts.probe import build_frozen_network, head_of_rows

        job = self.job.training
        frozen = build_frozen_network(job, self.events)
        validation = frozen.data.validation_rows

        def predict(_: Fit, rows: Integers) -> Integers:
            fitted = head_of_rows(job, frozen, rows, validation, None)
            predicted: Integers = frozen.logits_with(fitted)[self._tested].argmax(axis=1)
            return predicted

        return predict

    def _train(self, fit: Fit, rows: Integers) -> Integers:
        """Train all weights on some rows, or continue that; what the draws share differs by seed.

        A fit of its own folder resumes from its checkpoint; the folder goes once it is tested.
        """
        import torch

        from patchline.pipeline.data.store.opened_images import open_images
        from patchline.pipeline.models.stored_logits import logits_of
        from patchline.pipeline.training.loop import Training

        job = self.job.training
        folder = job.folder / fit.name
        split = self.rows["split"].where(self.rows["split"] != "train", _LEFT_OUT)
        split.iloc[rows] = "train"
        file = folder / "manifest.parquet"
        manifests.save(self.rows.assign(split=split), file)
        config = job.config.model_copy(update={"seed": (job.config.seed + fit.draw) % 2**32})
        own = {"manifest_file": file, "folder": folder, "config": config}
        trained = Training(job.model_copy(update=own), self.events).run()
        images, devices = open_images(job.store), [torch.device(trained.device)]
        predicted: Integers = logits_of(trained.best, images, self._tested, devices).argmax(axis=1)
        shutil.rmtree(folder)
        return predicted


def fit_shares(job: FittingJob, events: EventWriter) -> FittedShares:
    """Fit the learner of a job on the shares that are not kept yet, and test it."""
    from patchline.pipeline.training.out_of_memory import explain_out_of_memory

    rows = manifests.usable(manifests.load(job.training.manifest_file))
    with explain_out_of_memory():
        return ShareFits(job, events, rows).run()


if __name__ == "__main__":
    FITTING.main(fit_shares)
