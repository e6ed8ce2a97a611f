"""Settings of the training: optimizer, length and precision."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from patchline.pipeline.frozen_model import DocumentedModel, FrozenModel

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h)")
FULL_SIZE_FROM = 0.6
"""Progress from which training images have their full size."""
DEFAULT_EPOCHS = 60
"""Passes over the training split where neither epochs nor a time limit are set."""
_LABEL_SMOOTHING = 0.1
"""For images with one label."""
_SECONDS_PER_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0}


def duration_seconds(text: str) -> float:
    """Return the seconds in a duration such as `90s`, `20m` or `2h`.

    Raises:
        ValueError: for anything else, and for zero.
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _SECONDS_PER_UNIT[match[2]] if match else 0.0
    if seconds <= 0:
        raise ValueError("must be a number with a unit, such as 90s, 20m or 2h")
    return seconds


def _check_duration(text: str) -> str:
    duration_seconds(text)
    return text


Duration = Annotated[str, AfterValidator(_check_duration)]
FinalModel = Literal["best", "refit", "ensemble"]


class OptimizerConfig(DocumentedModel):
    """The optimizer and its learning-rate schedule."""

    name: Literal["adamw", "muon", "schedule_free", "sgd"] = "adamw"
    """Optimizer to train with: adamw (arXiv 1711.05101); muon for weight matrices and convolutions,
    with adamw for everything else (arXiv 2502.16982); schedule_free, an adamw that averages its
    weights itself and needs the constant schedule (arXiv 2405.15682); sgd with Nesterov
    momentum."""

    learning_rate: Annotated[
        float, Field(gt=0, le=1, json_schema_extra={"sweep": "2e-4..2e-2"})
    ] = 2e-3
    """Peak learning rate, reached after the warm-up; muon uses the same scale as adamw, sgd needs a
    larger one, such as 0.1."""

    schedule: Literal["cosine", "linear", "wsd", "constant"] = "cosine"
    """Learning rate after the warm-up: cosine and linear fall to zero, wsd stays constant and falls
    to zero in the last 20% of training (arXiv 2405.18392), constant does not fall."""

    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Momentum of muon and sgd."""

    weight_decay: Annotated[float, Field(ge=0, le=10, json_schema_extra={"sweep": "0..0.3"})] = 0.05
    """Decoupled weight decay of weight matrices; not applied to biases, normalisation layers and
    position embeddings."""

    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Decay of the running mean of the gradient."""

    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay of the running mean of the squared gradient."""

    layer_decay: Annotated[float, Field(gt=0, le=1, json_schema_extra={"sweep": "0.5..1"})] = 1.0
    """Factor of the learning rate from each block to the block before it; the head has the full
    rate, the embedding the lowest (arXiv 2106.08254, appendix). 1 for equal rates."""

    warmup_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Fraction of training with a linearly rising learning rate."""

    gradient_clip: Annotated[float, Field(gt=0)] | None = 1.0
    """Maximum global norm of the gradient; null for no clipping."""

    @model_validator(mode="after")
    def _schedule_free_has_no_schedule(self) -> Self:
        if self.name == "schedule_free" and self.schedule != "constant":
            raise ValueError(
                f"optimizer.schedule is {self.schedule}, but optimizer.name schedule_free needs a "
                "constant learning rate. Set optimizer.schedule to constant"
            )
        if self.name == "schedule_free" and self.beta1 == 0:
            raise ValueError(
                "optimizer.beta1 is 0, but optimizer.name schedule_free needs a value above 0. Set "
                "optimizer.beta1 to 0.9"
            )
        return self


class TrainingConfig(DocumentedModel):
    """Length, batch size and precision of training."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Passes over the training split; with time_limit, whichever ends first. By default 60, or no
    maximum if time_limit is set."""

    time_limit: Duration | None = None
    """Time of the run, from its first line to the report: 90s, 20m, 2h. Training, with all fits and
    the features of frozen weights, gets what is left beside reading, planning, evaluation and
    packaging."""

    trainable: Literal["all", "head", "head_then_all", "last_blocks"] | None = None
    """Weights that are trained: all; only the head, as a linear probe on features that are computed
    once; the head and then all; or the head and then the last blocks, from tokens that are computed
    once. After the head, the weights that are kept lie between those with the fitted head and the
    trained ones, as the loss on held-out images decides (arXiv 2109.01903). By default head if
    model.init is a file or published weights, or a model of which only the head was trained; all
    otherwise, and with a teacher."""

    last_blocks: Annotated[int, Field(ge=0, le=1000)] = 4
    """Number of blocks that last_blocks trains, together with the final normalization and the head;
    more blocks gain more from many images, and cost more."""

    early_stopping: Annotated[int, Field(ge=1)] | None = None
    """Number of validations without improvement after which training stops; null to never stop
    early."""

    batch_size: Annotated[int, Field(ge=1, le=65_536)] = 128
    """Images per step."""

    initial_image_scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Size of the training images for the first 60% of training, as a fraction of data.image_size;
    smaller images are faster to learn coarse structure from (arXiv 2405.08768)."""

    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the forward pass: bfloat16 and float16 use autocast, float16 with a scaled loss
    (arXiv 1710.03740). auto measures float32 and bfloat16, or float16 on a GPU without bfloat16,
    and chooses the latter if it is clearly faster."""

    compile: bool | None = None
    """Whether to compile the model with torch.compile, which takes a minute or more; by default on
    a GPU for a long training run. Affects the results."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Device to train on; auto uses a CUDA device if there is one."""

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Number of torch threads on the CPU. A plan measures it where other programs use the cores;
    otherwise torch's own number. It is chosen once, when a run starts. Affects the results."""

    processes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of processes that train together, each on its part of every batch: on a CPU they share
    the threads, on CUDA each has a GPU. Affects the results."""

    loss: Literal["cross_entropy", "bce", "asymmetric"] | None = None
    """Training loss: cross_entropy over the classes; bce, the mean binary cross-entropy of each
    class (arXiv 2110.00476, section 2); asymmetric, for images with several labels, a bce in which
    easy absent labels count less (arXiv 2009.14119). By default cross_entropy, or bce for images
    with several labels."""

    label_smoothing: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None, Field(json_schema_extra={"sweep": "0..0.2"})
    ] = None
    """Fraction of the target probability spread over all classes (arXiv 1512.00567, section 7); of
    each label of a set, spread over present and absent. By default 0.1, or 0 for images with
    several labels."""

    class_balance: Literal["none", "weights", "sampling"] = "none"
    """How rare classes count as much as frequent ones. weights multiplies the loss of an image by
    the inverse of its class's frequency in the training split, 1 on average over its images; for
    images with several labels, that of each label where it is present by the number of images
    without it over those with it, at most 20. sampling draws every class equally often in an epoch,
    images of a rare class several times, each time augmented differently; a head alone is fitted as
    with weights."""

    mixup: Annotated[float, Field(ge=0, le=10, json_schema_extra={"sweep": "0..0.8"})] = 0.0
    """MixUp (arXiv 1710.09412): alpha of the beta distribution of the mixing ratio; 0 turns it
    off."""

    cutmix: Annotated[float, Field(ge=0, le=10)] = 0.0
    """CutMix (arXiv 1905.04899): alpha of the beta distribution of the mixed area; 0 turns it off.
    If mixup is on too, each batch gets one of the two."""

    teacher: Annotated[str, Field(min_length=1)] | None = None
    """A model whose predictions are targets of the training beside the labels (knowledge
    distillation, arXiv 1503.02531): a model version such as flowers@champion, a run, a file of
    weights, or published ones such as timm:NAME or hf:OWNER/NAME. It has to know the same classes,
    and sees each image once, with its own preprocessing."""

    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.999
    """Decay rate of the exponential moving average of the weights, warmed up from 0; the average is
    what is evaluated and saved. Not used by schedule_free."""

    folds: Annotated[int, Field(ge=2, le=100)] | None = None
    """Number of folds for cross-validation on the training and validation images."""

    final_model: FinalModel | None = None
    """Model that is packaged in the end: best, with the weights of the best validation; refit,
    trained again on the training and validation images together, for as many epochs as the best
    weights took; ensemble, the models of all folds as one, which averages their probabilities. By
    default refit with folds, and best without."""

    @property
    def is_repeated(self) -> bool:
        """Whether validation images are trained on too: in folds, or by a refit."""
        return self.folds is not None or self.final_model == "refit"

    @property
    def epochs_without_limit(self) -> int:
        """The passes over the training split where no time limit is set."""
        return self.epochs or DEFAULT_EPOCHS

    def for_labels(self, *, several: bool) -> Self:
        """Return the settings with the loss that suits the labels, as far as it is not set.

        Args:
            several: whether an image has a set of labels instead of one.

        Raises:
            ValueError: if a setting is for the other kind of labels.
        """
        if several:
            self._refuse_settings_for_one_label()
        elif self.loss == "asymmetric":
            raise ValueError(
                "training.loss is asymmetric, but each image has one label. Set training.loss to "
                "cross_entropy or bce, or data.task to multi_label"
            )
        loss = self.loss or ("bce" if several else "cross_entropy")
        smoothing = self.label_smoothing
        if smoothing is None:
            smoothing = 0.0 if several else _LABEL_SMOOTHING
        return self.model_copy(update={"loss": loss, "label_smoothing": smoothing})

    def _refuse_settings_for_one_label(self) -> None:
        """Refuse what needs exactly one label for each image.

        Raises:
            ValueError: for the first such setting.
        """
        if self.loss == "cross_entropy":
            raise ValueError(
                "training.loss is cross_entropy, but the images have several labels, and it takes "
                "exactly one for each image. Set training.loss to bce or asymmetric, or leave it "
                "out"
            )
        if self.class_balance == "sampling":
            raise ValueError(
                "training.class_balance is sampling, but the images have several labels, and an "
                "image that is drawn for one label brings its others. Set training.class_balance "
                "to weights, which weighs each label by itself, or leave it out"
            )

    @model_validator(mode="after")
    def _settings_suit_each_other(self) -> Self:
        for sentence in self._refusals():
            raise ValueError(sentence)
        return self

    def _refusals(self) -> Iterator[str]:
        """Yield what is said of settings that exclude each other."""
        if self.trainable not in (None, "all"):
            yield from self._refused_with_heads(dict(self))
        if self.processes > 1 and self.batch_size < 2 * self.processes:
            yield (
                f"training.processes is {self.processes}, but each process needs at least two "
                f"images of a batch, and training.batch_size is {self.batch_size}. Lower "
                "training.processes, or raise training.batch_size"
            )
        if self.final_model == "ensemble" and self.folds is None:
            yield (
                "training.final_model is ensemble, but an ensemble needs folds. Set "
                "training.folds, such as 5, or leave out training.final_model"
            )
        if self.final_model == "best" and self.folds is not None:
            yield (
                f"training.final_model is best, but each of {self.folds} folds has best weights of "
                "its own. Set training.final_model to refit or ensemble, or leave out "
                "training.folds"
            )

    def _refused_with_heads(self, values: dict[str, Any]) -> Iterator[str]:
        """Yield what excludes that a head is fitted, given all settings."""
        of_blocks = self.trainable == "last_blocks"
        if self.final_model == "ensemble":
            yield (
                f"training.final_model is ensemble, but with training.trainable {self.trainable} a "
                "single head is fitted. Set training.final_model to refit, or training.trainable "
                "to all"
            )
        if self.trainable == "head_then_all" and self.is_repeated:
            name = "folds" if self.folds else "final_model"
            yield (
                f"training.{name} is {values[name]}, but training.trainable head_then_all "
                f"chooses the weights on one validation split. Leave out training.{name}, or "
                "set training.trainable to head or all"
            )
        if of_blocks and self.folds:
            yield (
                f"training.folds is {self.folds}, but training.trainable last_blocks has folds of "
                "its own where there are fewer than 50 validation images. Leave out "
                "training.folds; training.final_model refit trains on all images in the end"
            )
        if self.teacher is not None:
            yield (
                f"training.trainable is {self.trainable}, but training.teacher is {self.teacher}: "
                "its predictions are targets for images, and a head is fitted to labels alone. Set"
                " training.trainable to all, or leave out training.teacher"
            )
        values["initial_image_scale"] %= 1
        once = "the tokens of whole images are computed once"
        as_planned = "trains a few blocks, uncompiled, to the end of its plan"
        reasons = {
            **dict.fromkeys(
                ("mixup", "cutmix", "initial_image_scale"),
                f"with training.trainable last_blocks {once}",
            ),
            "compile": f"training.trainable last_blocks {as_planned}",
            "early_stopping": f"training.trainable last_blocks {as_planned}",
        }
        for name, why in reasons.items():
            if of_blocks and values[name]:
                yield (
                    f"training.{name} is {values[name]}, but {why}. Leave out training.{name}, or "
                    "set training.trainable to head_then_all"
                )


Config = TypeVar("Config", bound=FrozenModel)


def with_changes(config: Config, **sections: Mapping[str, Any]) -> Config:
    """Return a config with other values in some of its sections; they are not validated."""
    changed = {
        name: getattr(config, name).model_copy(update=values) for name, values in sections.items()
    }
    return config.model_copy(update=changed)
