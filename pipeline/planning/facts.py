"""What a plan is made from: the data, the machine, measured speeds, and what the user has set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from patchline.pipeline.config import pick_settings
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.planning.time_shares import TimeShares, training_share
from patchline.pipeline.presets import PRESETS, PresetName
from patchline.pipeline.terminal_words import counted

SHARE_OF_EACH = 0.9
"""Of the speed of one process with a GPU of its own, what each of several reaches. An assumption:
they wait for each other's gradients in every step."""

_LEAST_BESIDE_TEACHER = 1 / 3
"""Of the time for the training itself, however slow the teacher is."""
_MANY_TO_TRAIN_ON = 10_000
"""Labelled images with which a second training brings less than more epochs would."""


class DataFacts(FrozenModel):
    """The images to train on."""

    training_images: int
    """Number of training images, including those without labels."""
    unlabelled_images: int = 0
    """Number of training images without labels."""
    validation_images: int = 0
    test_images: int = 0
    classes: int
    median_side: int
    """Median of the images' shorter sides, in pixels."""
    greyscale: bool = False
    mirror_symmetric: bool = True
    """Whether a mirrored image still shows its class, as far as is known."""
    mirror: str = ""
    """How that is known, in a few words."""
    can_be_folded: bool = False
    """Whether five folds divide the images so that each of them can be trained."""
    labels_per_image: float | None = None
    """Mean number of labels of an image; None if each has one class."""
    validation_positives: float | None = None
    """Positives that a mAP of the validation images is as certain as, of sets of labels; see
    `patchline.pipeline.evaluation.metrics.mean_average_precision`."""
    cropped_away: float = 0.0
    """Median share of an image beside its middle square, of sets of labels."""

    @property
    def images(self) -> int:
        """All images of the three splits."""
        return self.training_images + self.validation_images + self.test_images

    @property
    def choosing_images(self) -> int:
        """Validation images as far as they choose an epoch.

        Where labels are rare, fewer positives than images decide a mAP.
        """
        if self.validation_positives is None:
            return self.validation_images
        return min(self.validation_images, round(self.validation_positives))

    @property
    def is_mostly_validated(self) -> bool:
        """Whether the validation split has half as many images as training, which has few.

        A split of classes of three images or groups is like that: each is in every split.
        """
        labelled = self.training_images - self.unlabelled_images
        return labelled < _MANY_TO_TRAIN_ON and 2 * self.validation_images >= labelled

    @property
    def choosing_in_words(self) -> str:
        """What chooses an epoch."""
        known = counted(self.validation_images, "validation image")
        if self.choosing_images == self.validation_images:
            return known
        return f"{known} with rare labels, whose mAP is that of {self.choosing_images:,} positives"

    @property
    def class_word(self) -> str:
        """`class`, or `label` of sets."""
        return "class" if self.labels_per_image is None else "label"

    @property
    def images_per_class(self) -> float:
        """Mean number of training images with each class or label."""
        return self.training_images * (self.labels_per_image or 1.0) / max(1, self.classes)

    @property
    def classes_in_words(self) -> str:
        """The number of classes, or of labels."""
        if self.labels_per_image is None:
            return f"{self.classes:,} classes"
        return f"{self.classes:,} labels, {self.labels_per_image:.1f} an image"


class MachineFacts(FrozenModel):
    """The machine that trains."""

    device: str = "cpu"
    """Device that trains: cpu, cuda or mps."""
    name: str = ""
    """Product name of the processor or accelerator."""
    threads: int = 2
    """Threads that torch computes with."""
    vector_instructions: str = ""
    """The CPU's vector instructions, as torch names them, such as AVX2."""
    memory_gib: float = 8.0
    """Main memory; for cuda, that of the accelerator once it was measured."""
    host_memory_gib: float = 8.0
    """Main memory, in which the system keeps the files that were read."""
    cache_gib: float | None = None
    """Limit of the cache of a shared workspace, above which images stay on the object store."""
    processes: int = 1
    """Number of processes that train together, on all machines."""
    machines: int = 1
    """Number of machines over which the processes are spread."""

    @property
    def local_processes(self) -> int:
        """Processes of one machine."""
        return max(1, self.processes // self.machines)

    @property
    def times_as_fast(self) -> float:
        """Images per second of all processes, as a multiple of those that were measured.

        On a CPU, the processes of a machine share its cores: 0.99 to 1.06 of one process
        (docs/reference/performance.md, "Several processes").
        """
        together = self.machines if self.device == "cpu" else self.processes
        return SHARE_OF_EACH * together if together > 1 else 1.0

    @property
    def computes_on(self) -> str:
        """The device in words: `cuda`, or `2 CPU threads`."""
        threads = counted(self.threads, "CPU thread")
        where = threads if self.device == "cpu" else self.device
        if self.times_as_fast == 1:
            return where
        each = "machine" if self.device == "cpu" else "process"
        number = counted(self.processes, "process", "processes")
        share = f"{SHARE_OF_EACH:.0%}"
        return f"{where}, {number}: assumed that each {each} reaches {share} of one alone"


class Speed(FrozenModel):
    """How fast a candidate trains."""

    candidate: str
    images_per_second: float
    """Training images in a second, measured with augmentation and update; 0 if the model does not
    fit the memory."""
    loaded_per_second: float = 0.0
    """Images that one core augments in a second, one at a time; 0 on a CPU, whose cores train."""
    validated_per_second: float = 0.0
    """Images that one process validates in a second, or, of initial weights, predicts in float32; 0
    if that was not measured."""
    epoch_end_seconds: float = 0.0
    """Time that keeping the weights and a copy of the state takes after a validation."""
    smaller_step_share: float = 0.0
    """Time of a step with images of three quarters of the side, as a share of one of full size; 0
    if that was not measured."""
    checkpoint_seconds: float = 0.0
    """Time that writing a checkpoint takes."""
    precision: str = ""
    """Precision in which it is that fast: float32 or bfloat16."""


class PlanFacts(FrozenModel):
    """Everything that decides a plan, apart from the user's settings."""

    preset: PresetName
    data: DataFacts
    machine: MachineFacts = MachineFacts()
    speeds: tuple[Speed, ...] = ()
    """Speeds of the candidates that were measured; the others are estimated from these."""
    busy_cores: float = 0.0
    """CPU cores that other programs used while the speeds were measured."""
    length_share: float = 1.0
    """Share of the preset's epochs and time; a warm start needs less than random weights."""
    parameters: int = 0
    """Number of parameters of the model with published weights; 0 if that is not known."""
    teacher_passes: int = 0
    """Images that a teacher predicts, times their views."""
    teacher_per_second: float = 0.0
    """Images that it predicts in a second, measured; 0 if that is not known."""
    weights_side: int = 0
    """Pixels per side of the images that published weights were trained with, where the plan may
    choose fewer; 0 where it may not."""
    weights_patch: int = 0
    """Pixels per side of their patches."""
    other_seconds: float = 0.0
    """Part of the run's time that is not for the training: what comes before and after it."""

    @property
    def minutes(self) -> float:
        """Time that a run with the preset takes at most."""
        return PRESETS[self.preset].minutes * self.length_share

    @property
    def teacher_seconds(self) -> float:
        """How long the teacher's predictions take, unless some are stored."""
        return self.teacher_passes / self.teacher_per_second if self.teacher_per_second else 0.0

    def training_seconds(self, seconds: float) -> float:
        """Return what the training gets of the time of a run, beside a teacher's predictions."""
        left = seconds * training_share(seconds, self.other_seconds)
        return max(_LEAST_BESIDE_TEACHER * left, left - self.teacher_seconds)

    def speed_of(self, candidate: str) -> Speed:
        """Return the speed of a candidate, all zeros if it was not measured."""
        of_none = Speed(candidate=candidate, images_per_second=0.0)
        return next((each for each in self.speeds if each.candidate == candidate), of_none)

    def speed_near(self, candidate: str) -> Speed:
        """Return the speed of a candidate, or of the largest that was measured."""
        own = self.speed_of(candidate)
        return own if own in self.speeds or not self.speeds else self.speeds[-1]


class Plan(FrozenModel):
    """Settings, in words and in full, with the reasons for them."""

    settings: dict[str, Any]
    """What the plan sets, nested like a config file; nothing that the user has set."""
    summary: tuple[str, ...]
    """The whole plan in two lines, including what the user has set, and what it starts from."""
    reasons: tuple[str, ...]
    images_per_second: float
    """Training images in a second, measured or estimated."""
    seconds_before: float = 0.0
    """Time before the first step, in which the features of a head that is fitted first and the
    tokens of the last blocks are computed. The features of a head alone are its training."""
    facts: PlanFacts
    candidate: str = ""
    """Name of the planned candidate; empty if there was only one."""
    shares: TimeShares | None = None
    """What the time of the run is spent on; None for a number of epochs that is set, and if it is
    not known."""

    def lines(self) -> list[str]:
        """Return the plan as it is printed."""
        return [*self.summary, *self.reasons]

    def text(self) -> str:
        """Return the plan as a text file."""
        return "\n".join(self.lines()) + "\n"


_DEFAULT_MODEL = "vit"
_DIMENSIONS = ("embed_dim", "depth", "num_heads", "mlp_dim")


@dataclass(frozen=True)
class UserSettings:
    """Settings by dotted key, such as `training.epochs`."""

    values: Mapping[str, Any]

    def __contains__(self, key: str) -> bool:
        """Return whether a setting, or anything below it, is set."""
        return any(name == key or name.startswith(f"{key}.") for name in self.values)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of a setting, or the default if it is not set."""
        return self.values.get(key, default)

    @property
    def seconds(self) -> float | None:
        """The time limit, if there is one."""
        from patchline.pipeline.training.config import duration_seconds

        limit = self.get("training.time_limit")
        return duration_seconds(limit) if limit else None

    def fits(self, data: DataFacts) -> list[float]:
        """Return the images in an epoch of each fit: one, or the folds and the last one.

        Args:
            data: the numbers of images.
        """
        from patchline.pipeline.training.job import images_of_fits

        return images_of_fits(
            max(1, data.training_images),
            data.validation_images,
            folds=self.get("training.folds"),
            final_model=self.get("training.final_model"),
        )

    @property
    def length_is_set(self) -> bool:
        """Whether the user decides how long the training is."""
        return any(self.get(f"training.{key}") is not None for key in ("time_limit", "epochs"))

    @property
    def epochs(self) -> int | None:
        """The epochs of the training, if no time limit may end it earlier."""
        return None if self.seconds else self.get("training.epochs")

    @property
    def leaves_model(self) -> bool:
        """Whether the plan may choose the dimensions of the model."""
        model = self.get("model.name", _DEFAULT_MODEL)
        return model == _DEFAULT_MODEL and "model.size" not in self

    @property
    def leaves_embedding(self) -> bool:
        """Whether the plan may choose the patch embedding, which only some models take."""
        model = self.get("model.name", _DEFAULT_MODEL)
        return model == _DEFAULT_MODEL and "model.patch_embedding" not in self

    @property
    def leaves_augmentation(self) -> bool:
        """Whether the plan may choose the augmentation; settings of one belong to its plugin."""
        return "augmentation" not in self

    @property
    def optimizer(self) -> str:
        """The optimizer to plan for; a learning rate alone is one of the default optimizer."""
        name: str = self.get("optimizer.name") or (
            "adamw" if "optimizer.learning_rate" in self else "muon"
        )
        return name

    def dimensions(self, planned: Mapping[str, int]) -> dict[str, int]:
        """Return a tier's dimensions with those that are set; the heads divide the embedding."""
        set_sizes = {key: self.get(f"model.{key}") for key in _DIMENSIONS}
        sizes = {key: set_sizes[key] or planned[key] for key in _DIMENSIONS}
        if set_sizes["embed_dim"] and not set_sizes["num_heads"]:
            heads = range(max(1, sizes["embed_dim"] // 32), 0, -1)
            sizes["num_heads"] = next(n for n in heads if sizes["embed_dim"] % n == 0)
        elif set_sizes["num_heads"] and not set_sizes["embed_dim"]:
            multiple = 4 * set_sizes["num_heads"]
            sizes["embed_dim"] = -(-sizes["embed_dim"] // multiple) * multiple
        if not set_sizes["mlp_dim"]:
            sizes["mlp_dim"] = planned["mlp_dim"] // planned["embed_dim"] * sizes["embed_dim"]
        return sizes

    def without_set(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return nested settings without those that are set."""
        return pick_settings(settings, lambda key, _: key not in self.values)
