"""What an augmentation takes for granted: that an image that it changes still shows its class.

Whether mirror images do is measured (`mirror_symmetry`). Nothing measures vertical flips, large
rotations or changes of hue, so it is said where they are used.
"""

from __future__ import annotations

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.symmetry.mirror_answer import MirrorSymmetry
from patchline.pipeline.plugin_system.plugin_loader import load_augmentation, plugin_errors
from patchline.pipeline.plugin_system.plugin_settings import settings_of
from patchline.plugin_api import Assumptions

_MIRRORS, _FLIP = "horizontal_flip", "model.test_time_flip"


def mirroring_settings(config: RunConfig) -> tuple[str, ...]:
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
        before: what the user has set.
        config: with what follows from the weights.
        mirror: the answer for the data.
    """
    assumptions = mirroring_settings(before)
    brought = [each for each in mirroring_settings(config) if each not in assumptions]
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


def unmeasured_symmetries(config: RunConfig) -> str:
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
