"""Check a stream, and tell others about a drift."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.flows.notifications import events
from patchline.flows.progress import display
from patchline.pipeline.automation import event_kinds
from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import data_settings, merged, validated
from patchline.pipeline.files.workspace_folder import WORKSPACE
from patchline.pipeline.registry.registered_models import resolve

if TYPE_CHECKING:
    from patchline.pipeline.monitoring.monitoring import MonitorChoices, Monitored


def check_stream(
    model: str, data: str, choices: MonitorChoices, columns: Mapping[str, Any]
) -> Monitored:
    """Check the images of a stream that are new, and send an event if they have drifted.

    Args:
        model: names the model, as the command's MODEL does.
        data: names the images, as the command's DATA does.
        choices: how the stream is monitored.
        columns: of a table, as the settings of a run name them: `label_column`.
    """
    from patchline.pipeline.monitoring.monitoring import monitor

    config = validated(merged(data_settings(data, None), {"data": dict(columns)}))
    version = resolve(model)
    display().stage(f"Comparing {data} with {version.name}, version {version.version}")
    result = monitor(
        version, config, stream_of(config), choices, WORKSPACE.resolve(), display().advance
    )
    if result.is_new and result.check.drift:
        _tell(result)
    return result


def stream_of(config: RunConfig) -> str:
    """Return what identifies a stream: an absolute path, an address, or the name of a source."""
    path = config.data.path
    if path is None:
        return config.data.source
    local = Path(path)
    return str(local.resolve()) if local.exists() else path


def _tell(result: Monitored) -> None:
    check, version = result.check, result.reference
    facts = {
        "name": version.name,
        "version": version.version,
        "stream": result.stream,
        "check": check.number,
        "images": check.images,
        "p_value": check.tests.p_value,
        "level": check.tests.level,
        "page": str(check.page),
    }
    events.emit(event_kinds.DRIFT_DETECTED, f"patchline.model.{version.name}", facts)
