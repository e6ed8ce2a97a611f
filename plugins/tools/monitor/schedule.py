"""What a schedule that monitors is checked for when it is created."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchline.flows.commands.switches import data_config
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.address import of_path
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugin_api import WorkRequest

_LEAST_IMAGES = 20
"""Fewest independent new images of a check that a schedule makes."""


def parameters(request: WorkRequest) -> dict[str, Any]:
    """Return the parameters of the monitoring flow.

    Raises:
        ConfigError: if an option is missing or for something else.
        DataError: if there is nothing to check.
        ModelReferenceError: if there is no such model, or it cannot be monitored.
    """
    from patchline.pipeline.registry.registered_models import resolve

    model, images = request.value, request.images
    if request.out is not None:
        raise ConfigError("--out is for predictions. Leave it out with --monitor.")
    if images is None:
        raise ConfigError(f"--monitor {model} also needs --images FOLDER. Add it.")
    data = of_path(images) or str(images.resolve() if images.exists() else images)
    if not of_path(images) and not images.is_dir():  # a folder may start empty
        _check_stream(images, data, request.columns)
    resolve(model)
    columns = {"columns": dict(request.columns)} if request.columns else {}
    return {"model": model, "data": data, "least_images": _LEAST_IMAGES, **columns}


def _check_stream(images: Path, data: str, columns: Mapping[str, Any]) -> None:
    """Refuse what holds no images to check."""
    from patchline.pipeline.data.manifests.source_listing import listing_of
    from patchline.pipeline.packaging.prediction.image_files import check_images

    config = data_config(data, columns)
    if config.data.source in ("image_folder", "archive"):
        check_images([images])
    else:
        listing_of(config, WORKSPACE.resolve(), labelled=False)  # as the check lists them
