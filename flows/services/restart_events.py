"""Prefect events for restarts of services: the supervisor notes a restart, the keeper sends it.

The supervisor imports neither Prefect nor MLflow, so that it stays small and hardly anything can
end it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from patchline.pipeline.local_services import services_folder
from patchline.pipeline.workspace.files.atomic_files import write_text

_FOLDER = "restarts"


def note(folder: Path, service: str, reason: str) -> None:
    """Write a note about a restart; of the reason only the part before the first semicolon."""
    file = services_folder(folder) / _FOLDER / f"{time.time_ns()}.json"
    write_text(file, json.dumps({"service": service, "reason": reason.partition(";")[0]}))


def announce() -> None:
    """Send an event for each note, once Prefect answers, and delete the note."""
    from patchline.flows.notifications import events
    from patchline.pipeline import local_services

    services = local_services.running()
    if services is None or not local_services.answers(f"{services.prefect_api_url}/health"):
        return  # events that are sent now would be lost
    for file in sorted((services_folder() / _FOLDER).glob("*.json")):
        noted = json.loads(file.read_text(encoding="utf-8"))
        resource = f"patchline.service.{noted['service']}"
        events.emit(events.SERVICES_RESTARTED, resource, noted)
        file.unlink(missing_ok=True)
