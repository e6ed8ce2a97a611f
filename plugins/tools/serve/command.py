"""The command `patchline serve`."""

from __future__ import annotations

from patchline.flows.commands.switches import Flat, Json, without_needless_negatives
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.web.config import ServingConfig
from patchline.plugins.tools.serve.model_server import serve_model

without_needless_negatives(ServingConfig)


def serve(model: str, /, *, settings: Flat[ServingConfig] = None, as_json: Json = False) -> int:
    """Serve a registered model over HTTP until Ctrl-C or SIGTERM.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion. With
        an alias, the server switches when the alias moves.
    settings
        Settings of the server.
    """
    config = settings or ServingConfig()
    if config.record is None and config.record_images:
        raise ConfigError("--record-images needs a folder. Add --record FOLDER.")
    return serve_model(model, config, as_json=as_json)
