"""The result of training: paths and numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    LabelThresholds,
)
from patchline.pipeline.evaluation.metrics.temperature import TemperatureFit
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.record import TrainingRecord


def without_none(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the values that there are."""
    return {name: value for name, value in values.items() if value is not None}


class EpochRecord(FrozenModel):
    """The metrics of one validation."""

    epoch: float
    step: int
    train_loss: float
    train_accuracy: float | None
    """None if the objective uses no labels, as for the other accuracies; None for sets of labels,
    too, which are right or wrong only once every label has a threshold."""
    validation_loss: float
    """Mean cross-entropy; of sets of labels the mean binary cross-entropy of all labels."""
    validation_accuracy: float | None
    learning_rate: float
    images_per_second: float
    """Rate of the training steps since the validation before."""
    validation_images: int = 0
    """Images that were validated; with a time limit, possibly a part of the split."""
    compared_accuracy: float | None = None
    """Accuracy on the images of every validation, by which the best is chosen; None if these are
    all images."""
    compared_loss: float | None = None
    """Loss on the same images."""
    validation_map: float | None = None
    """Mean average precision (mAP) of sets of labels, over the labels that some of the images have
    and some have not; None if there is no such label, and for images with one class."""
    compared_map: float | None = None
    """mAP on the images of every validation; None if these are all images."""
    map_positives: float = 0.0
    """Positives that decide how certain the compared mAP is; see `MeanAveragePrecision`."""

    @property
    def compared(self) -> tuple[float, float]:
        """Accuracy or mAP, and loss, on the images of every validation; they choose the best."""
        if self.compared_loss is None:
            score = self.validation_accuracy if self.validation_map is None else self.validation_map
            return score or 0.0, self.validation_loss
        score = self.compared_accuracy if self.compared_map is None else self.compared_map
        return score or 0.0, self.compared_loss

    @property
    def trials(self) -> float:
        """The images of an accuracy, or the positives of a mAP (Boyd et al. 2013, ECML)."""
        return self.validation_images if self.validation_map is None else self.map_positives

    def replaces(self, best: EpochRecord, history: Sequence[EpochRecord]) -> bool:
        """Return whether these weights are better than the best ones so far.

        The highest of many accuracies is partly luck: with few images, an early one of weights that
        still change a lot. So among those that are at most one standard error below the highest
        (the rule of Breiman et al. 1984, section 3.4.3), the loss decides, which is finer. The same
        holds for the mAP of sets of labels.

        Args:
            best: the best validation so far.
            history: all validations, with this one.
        """
        highest = max(each.compared[0] for each in history)
        trials = min(each.trials for each in history)
        # With two successes and two failures more (Agresti and Coull 1998), no share of few images
        # is without error.
        share = (highest * trials + 2) / (trials + 4)
        least = highest - math.sqrt(share * (1 - share) / max(1, trials))
        accuracy, loss = self.compared
        if best.compared[0] < least:
            return accuracy >= least
        return accuracy >= least and loss < best.compared[1]

    def metric_values(self) -> dict[str, float]:
        """Return the values by the names that MLflow shows."""
        values = {
            "train/loss": self.train_loss,
            "train/accuracy": self.train_accuracy,
            "validation/loss": self.validation_loss,
            "validation/accuracy": self.validation_accuracy,
            "validation/mAP": self.validation_map,
            "learning_rate": self.learning_rate,
            "images_per_second": self.images_per_second,
            "epoch": self.epoch,
        }
        return without_none(values)


class RefitResult(FrozenModel):
    """The result of training again on the training and validation images together."""

    weights: Path
    """Folder of the last weights."""
    images: int
    """Number of images trained on."""
    steps: int
    epochs: float
    seconds: float
    images_per_second: float


class EnsembleResult(FrozenModel):
    """The models of all folds as one model."""

    weights: Path
    calibrations: tuple[TemperatureFit, ...] = ()
    """The temperature of each member, fitted on the images of its fold; none of sets of labels."""
    label_calibrations: tuple[LabelCalibration, ...] = ()
    """The scales and shifts of each member instead, of sets of labels."""
    thresholds: LabelThresholds | None = None
    """Thresholds for sets of labels, from what each member predicts for the images of its fold."""
    seconds: float

    @property
    def models(self) -> int:
        """Number of models whose probabilities are averaged."""
        return len(self.calibrations) or len(self.label_calibrations)


class AverageRecord(FrozenModel):
    """The average of the weights of the last validations."""

    validations: int
    """Number of validations averaged."""
    accuracy: float | None
    """Accuracy on the validation images; None for sets of labels."""
    loss: float
    map: float | None = None
    """mAP of sets of labels on the validation images."""


class ProbeRecord(FrozenModel):
    """A head that was fitted on frozen features."""

    regularization: float
    """C, the inverse strength of the L2 penalty, as in scikit-learn."""
    features: int
    """Number of features of an image."""
    images: int
    """Images whose features were computed: those of all splits."""
    features_seconds: float


class TriedShare(FrozenModel):
    """The quality of the weights at a point between a fitted head and trained weights."""

    share: float
    """How far along: 0 is the initial network with the fitted head, 1 the trained weights."""
    accuracy: float | None
    """None for sets of labels."""
    loss: float
    """Mean cross-entropy, at the best temperature."""
    map: float | None = None
    """mAP of sets of labels."""

    @property
    def quality(self) -> float | None:
        """The accuracy, or of sets of labels the mAP."""
        return self.map if self.accuracy is None else self.accuracy


class FineTuningRecord(FrozenModel):
    """How far the weights went from a fitted head towards the trained ones, and why."""

    share: float
    """How far the weights go, from 0 to 1; 0 is the head alone."""
    tried: tuple[TriedShare, ...]
    """Points from the head to the trained weights; empty if there was no image to compare them
    on."""
    images: int
    """Images that the shares were compared on."""
    held_out: int = 0
    """How many of these are training images, predicted by fits without them."""
    regularization: float | None = None
    """C of the fitted head."""
    blocks: int | None = None
    """Number of last blocks that were trained; None for all weights."""
    views: int | None = None
    """Views of each image whose tokens the blocks were trained from."""

    @property
    def kept_head(self) -> bool:
        """Whether the head alone was better than any step towards the trained weights."""
        return self.share == 0.0

    def accuracy_at(self, share: float) -> float | None:
        """Return the accuracy at a share; None if it was not tried."""
        return next((each.accuracy for each in self.tried if each.share == share), None)

    @property
    def trained(self) -> str:
        """What was trained."""
        if self.blocks is None:
            return "all weights"
        if self.blocks == 0:
            return "the final normalization and the head"
        return f"the last {self.blocks} blocks" if self.blocks > 1 else "the last block"

    def sentence(self) -> str:
        """Return what was tried, and the outcome."""
        way = f"{self.share:.0%} of the way from the fitted head to the trained weights"
        if not self.tried:
            return f"{self.trained} trained: {way} kept, as no image was left to choose it with"
        qualities = ", ".join(
            f"{each.share:.0%}: {format_quality(each.quality)}" for each in self.tried
        )
        metric = "accuracy" if self.tried[0].accuracy is not None else "mAP"
        images = f"{self.images:,} image{'' if self.images == 1 else 's'}"
        if self.held_out:
            images += f", {self.held_out:,} of them training images predicted by fits without them"
        kept = "the head alone" if self.kept_head else way
        return (
            f"{self.trained} trained: {kept} kept, by the loss on {images} ({metric} at "
            f"{qualities})"
        )


class FoldRecord(FrozenModel):
    """The training of one fold, at its best weights."""

    fold: int
    """Number of the fold, from 1."""
    run_id: str
    """The nested MLflow run."""
    best: Path
    """Folder of the best weights."""
    accuracy: float | None
    """None for sets of labels."""
    loss: float
    epoch: float
    """Epoch of the best weights."""
    map: float | None = None
    """mAP of sets of labels."""
    regularization: float | None = None
    """C of a fitted head; None if all weights were trained."""


class FoldsResult(FrozenModel):
    """The result of a cross-validation: the mean over the folds, with t intervals."""

    folds: tuple[FoldRecord, ...]
    accuracy: MetricEstimate | None
    """None for sets of labels."""
    loss: MetricEstimate
    map: MetricEstimate | None = None
    """mAP of sets of labels; None if a fold has no label that only some of its images have."""

    @property
    def headline(self) -> tuple[str, MetricEstimate]:
        """The name of the main metric, and its mean over the folds."""
        if self.accuracy is not None:
            return "accuracy", self.accuracy
        return ("loss", self.loss) if self.map is None else ("mAP", self.map)

    def sentence(self) -> str:
        """Return the mean of the main metric over the folds, with its interval."""
        name, mean = self.headline
        shown = "{:.4g}" if name == "loss" else "{:.1%}"
        value, low, high = map(shown.format, (mean.value, mean.low, mean.high))
        return (
            f"validation {name} {value}, mean of {len(self.folds)} folds (95% t interval {low} to "
            f"{high})"
        )


class TrainResult(TrainingRecord):
    """Paths and numbers; large data stays in files.

    With a refit or folds, `best` is the folder of the final weights; the other values are those of
    the first training.
    """

    best: Path
    """Folder of the weights with the best validation metrics."""
    best_step: int
    best_epoch: float = 0.0
    best_validation_accuracy: float | None
    """None if the objective uses no labels, and for sets of labels."""
    best_validation_loss: float
    best_validation_map: float | None = None
    """mAP of sets of labels."""
    steps: int
    epochs: float
    seconds: float
    """Time from the first step to the end of the last validation."""
    images_per_second: float
    """Training images per second of training steps, without validation; of a fitted head, images
    per second of their features."""
    precision: str
    compiled: bool = False
    """Whether the model was compiled with `torch.compile`."""
    device: str
    threads: int
    parameters: int
    stopped_because: str
    stopped_early: bool = False
    """Whether validations without improvement ended the training."""
    history: tuple[EpochRecord, ...]
    probe: ProbeRecord | None = None
    """How the head was fitted, if `best` is the initial weights with another head."""
    fine_tuning: FineTuningRecord | None = None
    """How far training after the head went, if both were done."""
    averaged: AverageRecord | None = None
    """What `best` is, if it is not the weights of one validation."""
    refit: RefitResult | None = None
    """How the final weights were trained, if they were trained on the validation images, too."""
    selected: Path | None = None
    """Before a refit without folds, the folder of the weights with the best validation metrics."""
    folds: FoldsResult | None = None
    ensemble: EnsembleResult | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch of the first training."""
        return round(self.steps / self.epochs)

    def sentence(self) -> str:
        """Return which weights of a trained network were kept, and why it stopped if early."""
        accuracy, loss = self.best_validation_accuracy, self.best_validation_loss
        if accuracy is not None:
            quality = f"validation accuracy {accuracy:.1%}"
        elif self.best_validation_map is not None:
            quality = f"validation mAP {self.best_validation_map:.1%}"
        else:
            quality = f"validation loss {loss:.4g}"
        highest = max((each.compared[0] for each in self.history), default=-math.inf)
        own = accuracy if accuracy is not None else self.best_validation_map
        why = ""
        if own is not None and own < highest:
            why = " (the lowest loss among those within a standard error of the highest)"
        stopped = f"stopped at epoch {self.epochs:.4g}: {self.stopped_because}"
        if self.averaged is not None:
            count = self.averaged.validations
            kept = f"average of the last {count} validations' weights, {quality}"
            return f"{stopped}; {kept}" if self.stopped_early else kept
        if self.stopped_early:
            return f"{stopped} ({quality})"
        if self.fine_tuning is not None and self.fine_tuning.blocks is not None:
            return f"kept weights: {self.fine_tuning.share:.0%} of the way, {quality}"
        return f"best weights: epoch {self.best_step / self.steps_per_epoch:.4g}, {quality}{why}"


def format_quality(quality: float | None) -> str:
    """Return an accuracy or a mAP in percent, as far as it is known."""
    return "not known" if quality is None else f"{quality:.1%}"
