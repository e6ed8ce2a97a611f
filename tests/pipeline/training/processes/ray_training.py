"""Train a job on a Ray cluster: `python -m MODULE JOB SETTINGS`.

Prints one JSON line for each event, and at the end the result or the error.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from patchline.pipeline.config import PluginChoice
from patchline.pipeline.errors import PipelineError
from patchline.pipeline.files.workspace_folder import WORKSPACE
from patchline.pipeline.plugin_system.plugin_settings import built_launcher
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.machine import MEMBER_MODULE, MODULE, resources_of
from patchline.pipeline.training.train_result import TrainResult
from patchline.pipeline.workers import active_launcher
from patchline.pipeline.workers.event_log import Event
from patchline.pipeline.workers.worker_process import run_worker
from patchline.pipeline.workspace import chosen


def main(file: Path, settings: str) -> int:
    """Train, and return the exit code of the command line."""
    job = TrainingJob.model_validate_json(file.read_text(encoding="utf-8"))
    choice = PluginChoice.model_validate_json(settings)

    def show(event: Event) -> None:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    is_shared = chosen.VARIABLE in os.environ
    workspace = WORKSPACE.resolve() if is_shared else file.parent
    try:
        with active_launcher.using("ray", lambda: built_launcher(choice, workspace)):
            needs = resources_of(job.config.training)
            result = run_worker(MODULE, job.folder, job, TrainResult, show, needs, MEMBER_MODULE)
    except PipelineError as error:
        said = {"class": type(error).__name__, "message": str(error)}
        show({"kind": "error", **said})
        return error.exit_code
    show({"kind": "result", "steps": result.steps, "threads": result.threads})
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
