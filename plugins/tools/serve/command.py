"""The command `patchline serve`, and the model server of `patchline up --serve`."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from patchline.flows.commands.switches import Flat, Json, without_needless_negatives
from patchline.pipeline.errors import ConfigError, ModelReferenceError, RunError, ServerAwayError
from patchline.pipeline.local_services import answers
from patchline.pipeline.web.access_control import check_access
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.listening import log_to_standard_error, open_listening_socket, url_of

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


_POLL_SECONDS = 0.2


def serve_model(model: str, config: ServingConfig, *, as_json: bool) -> int:
    """Serve a model until a signal arrives; return the exit code."""
    from patchline.pipeline.registry.served_package import fetch_served_package
    from patchline.pipeline.registry.serving import server
    from patchline.pipeline.registry.serving.alias_watch import Registry
    from patchline.pipeline.registry.serving.checked_package import (
        PackageRefusedError,
        check_package,
    )
    from patchline.pipeline.registry.serving.engine import cores
    from patchline.pipeline.web.listening import check_certificate

    check_access(config)
    log_to_standard_error("patchline.pipeline.registry.serving")
    check_certificate(config)
    registry = Registry()
    name, alias, version = _resolve(model, registry)
    listening = open_listening_socket(config)
    with listening:
        folder = fetch_served_package(registry.reader(), name, version, config.form)
        url = url_of(config, listening.getsockname()[1])
        first = server.FirstVersion(
            name, alias, version, lambda: check_package(folder, config.threads or cores())
        )

        def tell() -> None:
            if as_json:
                ready = {"url": url, "model": name, "version": version, "form": config.form}
                print(json.dumps(ready), flush=True)
                return
            as_form = f" as {config.form}" if config.form else ""
            follows = f" and follows the alias {alias}" if alias else ""
            print(
                f"Serving {name}, version {version}{as_form}, at {url}{follows}. Ctrl-C stops it.",
                flush=True,
            )

        try:
            server.serve(first, config, listening, tell, registry)
        except PackageRefusedError as error:
            raise RunError(
                f"Version {version} of '{name}' cannot be served: {error}. Name another version."
            ) from error
    return 0


def _resolve(model: str, registry: Any) -> tuple[str, str | None, str]:
    """Return the name, the alias that is followed, and the version of a reference.

    Raises:
        ModelReferenceError: if there is none; the message lists what there is.
    """
    from patchline.pipeline.registry.aliases import parsed
    from patchline.pipeline.workspace.tracking.tracking_store import store_exists

    name, alias, version = parsed(model)
    try:
        if version is None:
            assert alias is not None  # noqa: S101 - one of the two
            version = registry.reader().version_of(name, alias)
        elif registry.reader().place_of(name, version) is None:
            version = None
    except ServerAwayError:
        if store_exists():
            raise
        version = None
    if version is None:
        from patchline.pipeline.registry.registered_models import resolve

        resolve(model)  # MLflow takes seconds, and knows what there is instead
        raise ModelReferenceError(f"'{model}' is not in the registry. `patchline models` lists it.")
    return name, alias, version


def serve_beside_mlflow(model: str, port: int) -> None:
    """Serve a model on loopback once the MLflow server of `patchline up` answers."""
    store = os.environ.get("MLFLOW_TRACKING_URI", "")
    while store.startswith("http") and not answers(f"{store.rstrip('/')}/health"):
        time.sleep(_POLL_SECONDS)
    serve_model(model, ServingConfig(port=port), as_json=False)
