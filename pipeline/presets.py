"""The presets quick, balanced, best and none: how ambitious the plan of a run is.

Every run is planned with `balanced`, at most 30 minutes or 60 epochs, unless another preset is
named; `none` plans nothing, so that what is not set has its default. In a `RunConfig`, `none` is
null: so it is written once a plan is made, and a resolved config is never planned again.
`patchline.pipeline.planning` turns a preset into settings, from the data and the machine.

The metric balanced accuracy is something else: the mean of the classes' recalls
(`pipeline/evaluation/metrics/averages.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from patchline.pipeline.errors import ConfigError, suggest_name
from patchline.pipeline.frozen_model import DocumentedModel

PresetName = Literal["quick", "balanced", "best"]
NONE = "none"
"""The name that stands for no preset."""
DEFAULT: PresetName = "balanced"
"""The preset of every run whose settings name none."""


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


class PresetChoice(DocumentedModel):
    """A preset, and the settings that its plan leaves unchanged."""

    name: Annotated[PresetName, Field(json_schema_extra={"enum": [*PRESETS, NONE]})]
    """Preset to plan with: quick, balanced or best; none for the defaults."""

    keep: tuple[str, ...] = Field(default=())
    """Settings that the user has set, such as training.epochs; a value that differs from the
    default is kept even if it is not listed."""


def preset_choice(preset: Any) -> Any:
    """Return what a setting names as a preset: a choice, or None for `none` and null.

    Args:
        preset: a name, a choice, or its fields, as in a config file, a form or a stored config.
    """
    name = preset.get("name") if isinstance(preset, Mapping) else preset
    if name == NONE:
        return None
    return {"name": preset} if isinstance(preset, str) else preset


def check_preset(name: str) -> PresetName | None:
    """Return the name of a preset; None for `none`.

    Raises:
        ConfigError: if there is no such preset.
    """
    if name == NONE:
        return None
    preset = next((known for known in PRESETS if known == name), None)
    if preset is not None:
        return preset
    names = (*PRESETS, NONE)
    hint = suggest_name(name, names)
    raise ConfigError(f"There is no preset '{name}'.{hint} Presets: {', '.join(names)}.")
