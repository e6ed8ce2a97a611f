"""The command `patchline models`."""

from __future__ import annotations

import json

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import Json
from patchline.pipeline.registry.registered_models import summaries
from patchline.pipeline.terminal_words import visible


def models(name: str | None = None, /, *, as_json: Json = False) -> None:
    """List registered models with their versions, aliases and metrics.

    Parameters
    ----------
    name
        List one model only, with the origin of its versions and the history of its aliases.
    """
    tell_closed()
    listed = summaries(name)
    if as_json:
        print(json.dumps({"models": [model.model_dump(mode="json") for model in listed]}, indent=2))
    else:
        from patchline.pipeline.registry.terminal_text import models_text

        print(visible(models_text(listed, details=name is not None), lines=True))
