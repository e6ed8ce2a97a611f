"""The presets quick, balanced and best: how ambitious a plan is where the user sets no length.

`balanced`, which counts unless another one is named, trains for at most 30 minutes or 60 epochs;
`patchline.pipeline.planning` turns a preset into settings, from the data and the machine. In three
other places the word is about rare classes: `training.sampling` draws every class equally often,
`training.class_weights` weighs the loss instead (`pipeline/training/config.py`), and the metric
balanced accuracy is the mean of the classes' recalls (`pipeline/metrics/averages.py`).
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel

PresetName = Literal["quick", "balanced", "best"]


@dataclass(frozen=True)
class Ambition:
    """How long a preset trains; whichever ends first decides."""

    minutes: float
    """Training time on this machine, from its measured speed."""
    epochs: int
    """Most passes over the training images."""


PRESETS: dict[PresetName, Ambition] = {
    "quick": Ambition(minutes=5, epochs=20),
    "balanced": Ambition(minutes=30, epochs=60),
    "best": Ambition(minutes=240, epochs=200),
}


class PresetChoice(FrozenModel):
    """A preset, and the settings that its plan leaves unchanged."""

    name: PresetName
    """Preset to plan with: quick, balanced or best."""

    keep: tuple[str, ...] = Field(default=())
    """Settings that the user has set, such as training.epochs; a value that differs from the
    default is kept even if it is not listed."""


def checked_preset(name: str) -> PresetName:
    """Return the name of a preset.

    Raises:
        ConfigError: if there is no such preset.
    """
    preset = next((known for known in PRESETS if known == name), None)
    if preset is not None:
        return preset
    close = difflib.get_close_matches(name, PRESETS, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    raise ConfigError(f"There is no preset '{name}'.{hint} Presets: {', '.join(PRESETS)}.")
