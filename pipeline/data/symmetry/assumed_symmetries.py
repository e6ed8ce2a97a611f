"""What an augmentation takes for granted: that an image that it changes still shows its class.

Whether mirror images do is measured (`mirror_symmetry`). Nothing measures vertical flips, large
rotations or changes of hue, so it is said where they are used.
"""

from __future__ import annotations

from typing import Literal

from patchline.pipeline.config import RunConfig
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.plugin_system.plugin_loader import load_augmentation, plugin_errors
from patchline.pipeline.plugin_system.plugin_settings import settings_of
from patchline.plugin_api import Assumptions

Answer = Literal["symmetric", "asymmetric", "unknown"]


class MirrorSymmetry(FrozenModel):
    """Whether a mirrored image still shows its class, and how that is known."""

    answer: Answer
    origin: Literal["set", "declared", "measured"]
    note: str = ""
    """The answer and its evidence in a sentence, if measured or against the settings."""
    why: str = ""
    """Why no image is mirrored, in a few words."""
    is_contradicted: bool = False
    """Whether settings mirror images that were measured to show other classes."""
    is_ignored: bool = False
    """Whether settings mirror images although it is not known whether they show the same classes.
    """
    classes: tuple[str, ...] = ()
    """The classes that are certainly not symmetric by the measurement."""

    @property
    def said(self) -> str:
        """What a run says of it: the evidence is for whoever looks at the data.

        Empty where nothing was left out because of it, or the data has declared it.
        """
        if self.is_contradicted or self.is_ignored:
            return self.note
        if not self.note or self.is_symmetric:
            return ""
        if self.answer == "unknown":
            return (
                "images are not mirrored, as it is not known whether they show the same classes "
                "then; set data.mirror_symmetric if you know"
            )
        return "images are not mirrored: they do not show the same classes then"

    @property
    def is_symmetric(self) -> bool:
        """Whether images may be mirrored; what is not known is not used."""
        return self.answer == "symmetric"


_MIRRORS, _FLIP = "horizontal_flip", "model.test_time_flip"


def find_mirroring_settings(config: RunConfig) -> tuple[str, ...]:
    """Return what a user has set that makes use of mirror images, whatever the data says.

    Each is a clause, such as "augmentation.horizontal_flip is true".
    """
    settings = {
        f"augmentation.{_MIRRORS}": config.augmentation.settings.get(_MIRRORS),
        _FLIP: config.model.settings.get("test_time_flip"),
        "model.patch_embedding.mirror_equivariant": config.model.patch_embedding.settings.get(
            "mirror_equivariant"
        ),
    }
    settings_on = [f"{name} is true" for name, value in settings.items() if value is True]
    assumptions = _assumptions(config)
    if assumptions and assumptions.mirrors:
        settings_on.append(
            f"augmentation.name {config.augmentation.name} mirrors images ({assumptions.mirrors})"
        )
    return tuple(settings_on)


def notes_on_mirroring_weights(
    before: RunConfig, config: RunConfig, mirror: MirrorSymmetry
) -> list[str]:
    """Return whether initial weights bring in mirror images that the data does not allow.

    Args:
        before: the settings of the user.
        config: the settings, with those that follow from the weights.
        mirror: the answer for the data.
    """
    assumptions = find_mirroring_settings(before)
    brought = [each for each in find_mirroring_settings(config) if each not in assumptions]
    if not brought or mirror.answer == "symmetric":
        return []
    answer = "mirrored images do not show the same classes"
    if mirror.answer == "unknown":
        answer = "whether mirrored images show the same classes is not known"
    remedy = "use other initial weights"
    if brought[0].startswith(_FLIP):
        remedy = f"set {_FLIP} to false"
    cause = f"{brought[0]} in the initial weights, so an image and its mirror image get the same"
    return [f"{cause} prediction, but {answer}: {remedy}"]


def describe_unmeasured_symmetries(config: RunConfig) -> str:
    """Return what the augmentation assumes without a measurement; empty if that is nothing."""
    assumptions, name = _assumptions(config), config.augmentation.name
    if assumptions is None:
        return (
            f"whether an image keeps its class under the augmentation {name} is not known: its "
            "plugin does not declare what it assumes"
        )
    if not assumptions.changes:
        return ""
    return (
        f"assumed, not measured: an image keeps its class under {_join_words(assumptions.changes)} "
        f"(augmentation {name}); choose another augmentation.name if it does not"
    )


def _assumptions(config: RunConfig) -> Assumptions | None:
    """Return what the augmentation declares; None if it declares nothing."""
    name = config.augmentation.name
    plugin = load_augmentation(name)
    if plugin.assumptions is None:
        return None
    settings = settings_of("augmentation", config.augmentation, "augmentation")
    with plugin_errors("augmentation", name, "failed to say what it assumes"):
        return plugin.assumptions(settings)


def _join_words(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
