"""`patchline plugins show schedule NAME`: the learning rate over a training run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Parameter

from patchline.flows.commands.switches import Json
from patchline.pipeline import config_files
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.config import OptimizerConfig
from patchline.pipeline.training.recipe.schedule import learning_rate

Kind = Literal["schedule", "optimizer"]
CURVES: tuple[Kind, ...] = get_args(Kind)
_POINTS, _ROWS = 64, 10
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class OptimizerSettings(FrozenModel):
    """The settings that decide the learning rate."""

    optimizer: OptimizerConfig | None = None


def build_curve(kind: Kind, name: str) -> Callable[..., None]:
    """Return the command that draws the learning rate of a schedule, or with an optimizer.

    Raises:
        ConfigError: if there is no schedule or optimizer of that name.
    """
    names = list(get_args(OptimizerConfig.model_fields[_key_of(kind)].annotation))
    if name not in names:
        raise ConfigError(f"There is no {kind} '{name}'. Choose one of {', '.join(names)}.")

    def show(
        *words: str,
        picture: Path | None = None,
        as_json: Json = False,
        settings: Annotated[OptimizerSettings | None, Parameter(name="*")] = None,
    ) -> None:
        """Draw the learning rate of a schedule over a training run.

        Parameters
        ----------
        words
            schedule NAME or optimizer NAME.
        picture
            Write the curve as a picture: .svg, .png or .pdf.
        settings
            Settings of the optimizer: --optimizer.warmup-fraction 0.2.
        """
        del words
        given = settings.model_dump(exclude_unset=True) if settings else {}
        chosen = {"optimizer": {_key_of(kind): name}}
        if name == "schedule_free":
            chosen["optimizer"]["schedule"] = "constant"
        config = config_files.validated(config_files.merged(chosen, given)).optimizer
        rates = learning_rates(config, _POINTS)
        if picture is not None:
            _save_picture(config, picture)
            print(f"Picture: {picture}", file=sys.stderr)
        if as_json:
            answer: dict[str, Any] = {"kind": kind, "name": name, "learning_rates": rates}
            print(json.dumps(answer, indent=2))
            return
        print(f"optimizer {config.name}, schedule {config.schedule}, ", end="")
        print(f"warm-up {config.warmup_fraction:.0%}, peak {config.learning_rate:g}\n")
        print("\n".join(_drawn(rates)))

    return show


def learning_rates(config: OptimizerConfig, points: int) -> list[float]:
    """Return the learning rate at equally distant moments of a training run."""
    return [learning_rate(config, (point + 0.5) / points) for point in range(points)]


def _key_of(kind: Kind) -> str:
    return "schedule" if kind == "schedule" else "name"


def _drawn(rates: Sequence[float]) -> list[str]:
    """Return the lines of a bar chart, with the learning rate beside its axis."""
    peak = max(rates)
    lines = []
    for row in range(_ROWS, 0, -1):
        heights = [rate / peak * _ROWS - (row - 1) for rate in rates]
        bars = "".join(_EIGHTHS[round(8 * min(1.0, max(0.0, each)))] for each in heights)
        label = f"{peak * row / _ROWS:.2g}" if row in (_ROWS, _ROWS // 2) else ""
        lines.append(f"{label:>10} │{bars}".rstrip())
    lines.append(f"{0:>10} └{'─' * len(rates)}")
    lines.append(f"{'':>12}start{'of training':^{len(rates) - 8}}end")
    return lines


def _save_picture(config: OptimizerConfig, file: Path) -> None:
    if file.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"--picture {file} must end with .svg, .png or .pdf.")
    from matplotlib.figure import Figure

    points = 500
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot([(point + 0.5) / points for point in range(points)], learning_rates(config, points))
    axes.set(xlabel="training progress", ylabel="learning rate", ylim=(0, None))
    figure.savefig(file)
