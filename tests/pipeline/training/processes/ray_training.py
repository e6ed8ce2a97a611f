"""Train a job on a Ray cluster: `python -m MODULE JOB`, with settings on each line of the input.

Prints one JSON line for each event, and in the end of each attempt one of the kind `ended`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.errors import PipelineError
from patchline.pipeline.plugin_system.plugin_settings import settings_of
from patchline.pipeline.training.job import TRAINING, TrainingJob
from patchline.pipeline.training.machine import resources_of
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.launcher import Resources
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugin_api import LauncherContext
from patchline.plugins.launchers.ray import RayLauncher


def attempt(job: TrainingJob, settings: dict[str, Any]) -> dict[str, Any]:
    """Train, and return how it has ended.

    Args:
        job: what to train.
        settings: of the launcher; `first_look` asks what the nodes are instead of training,
            `workspace` is the address of a shared one, and `wait_seconds` is how long to wait.
    """
    looks = settings.pop("first_look", False)
    if address := settings.pop("workspace", ""):
        chosen.use(address)
    wait_seconds = settings.pop("wait_seconds", 300)
    choice = PluginChoice.model_validate(settings)
    needs = resources_of(job.config.training)
    try:
        with worker_start.use_launcher(
            str((settings, wait_seconds)),
            lambda: _launcher(choice, wait_seconds),
        ) as launcher:
            if looks:
                return {"code": 0, "message": launcher.introduction(TRAINING.module, Resources())}
            result = TRAINING.run(job.folder, job, show, needs)
    except PipelineError as error:
        return {"code": error.exit_code, "message": str(error)}
    return {"code": 0, "threads": result.threads}


def _launcher(choice: PluginChoice, wait_seconds: float) -> RayLauncher:
    config: Any = settings_of("launcher", choice, "launcher")
    return RayLauncher(config, LauncherContext(WORKSPACE.resolve()), wait_seconds)


def show(event: Event) -> None:
    """Print an event."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asked = TrainingJob.model_validate_json(Path(sys.argv[1]).read_text("utf-8"))
    for line in sys.stdin:
        show({"kind": "ended", **attempt(asked, json.loads(line))})
