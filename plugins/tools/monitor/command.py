"""The command `patchline monitor`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.flows.closing.close_runs import tell_closed
from patchline.flows.commands.switches import (
    Columns,
    Json,
    data_config,
    dump_given_flags,
    emit,
    terminal_lines,
)
from patchline.flows.progress.progress_display import show_progress
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.workspace.address import of_path
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugin_api import WorkRequest

if TYPE_CHECKING:
    from patchline.plugins.tools.monitor.check_journal import StreamCheck
    from patchline.plugins.tools.monitor.monitoring import Monitored

DRIFT = 3
"""Exit code if the images differ from the reference."""


def monitor(
    model: str,
    data: str,
    /,
    *,
    false_alarms: float | None = None,
    checks: int | None = None,
    least_images: int = 20,
    as_json: Json = False,
    table: Columns = None,
) -> int:
    """Check whether new images are still like those of the test; exits with code 3 if not.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; NAME alone means its champion.
    data
        A folder of images, an archive, a table, SOURCE:NAME for another data source plugin, or a
        folder that `patchline serve --record` writes. Each check tests the images that are new.
    false_alarms
        Probability of any false alarm in a period of checks. Default: 0.05.
    checks
        Checks in a period, such as 365 for a year of daily checks. Default: 365.
    least_images
        Fewest independent new images of a check (near duplicates are counted once); with fewer,
        nothing is tested.
    table
        Columns of a table, where they cannot be guessed.
    """
    from patchline.plugins.tools.monitor.monitoring import MonitorChoices, check_stream

    choices = MonitorChoices(false_alarms=false_alarms, checks=checks, least_images=least_images)
    columns = dump_given_flags(table)
    tell_closed()
    with show_progress():
        result = check_stream(model, data, choices, columns)
    lines = terminal_lines("monitored.txt.j2", __package__, result=result)
    emit(_as_json(result), *lines, as_json=as_json)
    return DRIFT if result.check.drift else 0


def _as_json(result: Monitored) -> dict[str, Any]:
    check, dumped = result.check, result.check.model_dump(mode="json")

    def values(of: dict[str, Any], *names: str) -> dict[str, Any]:
        return {name: of[name] for name in names}

    return {
        "drift": check.drift,
        **values(dumped["tests"], "p_value", "level", "tests", "unknown"),
        **values(dumped, "images", "independent_images", "reference_images"),
        **values(dumped, "independent_reference_images", "independence_unknown"),
        "class_shares": _class_shares(check),
        "page": str(check.page),
        "model": result.reference.name,
        "version": result.reference.version,
        "stream": result.stream,
        "check": check.number,
        "new": result.is_new,
        **values(dumped, "false_alarms", "checks", "spent", "labels", "confidence", "accuracy"),
        **values(dumped, "accuracy_unknown", "notes"),
    }


def _class_shares(check: StreamCheck) -> dict[str, Any] | None:
    shares = check.class_shares
    if shares is None:
        return None
    return {**shares.model_dump(), "explains": shares.explains, "sentence": shares.sentence()}


_LEAST_IMAGES = 20
"""Fewest independent new images of a check that a schedule makes."""


def scheduled_parameters(request: WorkRequest) -> dict[str, Any]:
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
