"""The command `patchline models`."""

from __future__ import annotations

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json, emit
from patchline.pipeline.registry.registered_models import summaries


def models(name: str | None = None, /, *, as_json: Json = False) -> None:
    """List registered models with their versions, aliases and metrics.

    Parameters
    ----------
    name
        List one model only, with the origin of its versions and the history of its aliases.
    """
    tell_closed()
    listed = summaries(name)
    from patchline.pipeline.registry.terminal_text import models_text

    emit(
        {"models": [model.model_dump(mode="json") for model in listed]},
        *models_text(listed, details=name is not None).split("\n"),
        as_json=as_json,
    )
