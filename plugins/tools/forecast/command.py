"""The command `patchline forecast`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.flows.commands.run import compose_settings
from patchline.flows.commands.switches import (
    Json,
    add_flags,
    dump_given_flags,
    emit,
    terminal_lines,
)
from patchline.flows.progress.progress_display import show_progress

if TYPE_CHECKING:
    from patchline.plugins.tools.forecast.forecasting import Forecast


def build(arguments: list[str]) -> Callable[..., None]:
    """Return the command, typed for the plugins that the arguments choose."""
    chosen: Any = compose_settings(arguments)

    def forecast(
        data: str | None = None,
        /,
        *,
        inbox: Path | None = None,
        seconds_per_label: float | None = None,
        config: Path | None = None,
        preset: str | None = None,
        as_json: Json = False,
        settings: Any = None,
    ) -> None:
        """Forecast the accuracy with more labels; without DATA, of the built-in digits.

        Parameters
        ----------
        data
            Folder of class folders, archive (zip, tar), table (CSV, Parquet, …), or SOURCE:NAME.
        inbox
            Folder of images without labels: what would labelling them bring?
        seconds_per_label
            Time that a person takes to label an image, to tell what labels cost.
        config
            YAML file with settings; flags override it.
        preset
            Plan of the learner: quick (unless a file is given), balanced, best, or none.
        settings
            Settings of the learner and its data.
        """
        from patchline.plugins.tools.forecast import forecasting

        questions = forecasting.Questions(inbox=inbox, seconds_per_label=seconds_per_label)
        request = forecasting.build_config(data, preset, config, dump_given_flags(settings))
        with show_progress():
            result = forecasting.forecast_accuracy(request, questions)
        lines = terminal_lines("forecast.txt.j2", __package__, result=result)
        emit(_as_json(result), *lines, as_json=as_json)

    return add_flags(forecast, chosen)


def _as_json(result: Forecast) -> dict[str, Any]:
    dumped = result.model_dump(mode="json")
    return {
        "metric": result.metric,
        "known": bool(result.forecast),
        "sentences": result.sentences(),
        **dumped,
    }
