"""Check a stream, and tell others about a drift."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from patchline.flows.notifications import events
from patchline.flows.progress.progress_display import display
from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import data_settings, merged, validated
from patchline.pipeline.registry.registered_models import ModelReference, resolve
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugins.tools.monitor.tool import DRIFT_DETECTED

if TYPE_CHECKING:
    from patchline.plugins.tools.monitor.check_journal import StreamCheck
    from patchline.plugins.tools.monitor.monitoring import MonitorChoices, Monitored


class _Subject(NamedTuple):
    """What is checked."""

    version: ModelReference
    config: RunConfig
    stream: str


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
    from patchline.plugins.tools.monitor.monitoring import monitor

    version, config, stream = subject = _subject(model, data, columns)
    _tell(subject)  # this check may end without a result
    display().stage(f"Comparing {data} with {version.name}, version {version.version}")
    result = monitor(version, config, stream, choices, WORKSPACE.resolve(), display().advance)
    _tell(subject)
    return result


def tell_earlier_drifts(model: str, data: str, columns: Mapping[str, Any]) -> list[Monitored]:
    """Send the events of drifts of a stream that could not be sent, and return their checks.

    The server was down then, or the process was killed. What cannot be sent now is told later.

    Args:
        model: names the model, as the command's MODEL does.
        data: names the images, as the command's DATA does.
        columns: of a table, as the settings of a run name them: `label_column`.
    """
    from patchline.plugins.tools.monitor.monitoring import Monitored

    version, _, stream = subject = _subject(model, data, columns)
    return [Monitored(version, stream, check, is_new=False) for check in _tell(subject)]


def stream_of(config: RunConfig) -> str:
    """Return what identifies a stream: an absolute path, an address, or the name of a source."""
    path = config.data.path
    if path is None:
        return config.data.source
    local = Path(path)
    return str(local.resolve()) if local.exists() else path


def _subject(model: str, data: str, columns: Mapping[str, Any]) -> _Subject:
    config = validated(merged(data_settings(data, None), {"data": dict(columns)}))
    return _Subject(resolve(model), config, stream_of(config))


def _tell(subject: _Subject) -> list[StreamCheck]:
    """Send the events that have not been sent, and return their checks."""
    from patchline.plugins.tools.monitor.check_journal import CheckJournal

    version, stream = subject.version, subject.stream
    label = f"{version.name}/{version.version}"
    journal = CheckJournal(WORKSPACE.resolve(), label, stream)
    untold = journal.untold()
    for check in untold:
        facts = {
            "name": version.name,
            "version": version.version,
            "stream": stream,
            "check": check.number,
            "images": check.images,
            "independent_images": check.independent_images,
            "p_value": check.tests.p_value,
            "level": check.tests.level,
            "page": str(check.page),
        }
        own = uuid.uuid5(uuid.NAMESPACE_URL, f"{journal.folder}#{check.number} {check.at}")
        resource = f"patchline.model.{version.name}"
        if events.deliver(DRIFT_DETECTED, resource, facts, own):
            journal.note_told(check)
    return untold
