"""One process: `python -P -m patchline.pipeline.training.processes.rank FOLDER PARENT`.

`process_launch.py` starts it, with the environment variables of torchrun; PARENT is the id of the
process that does so. The leader, process 0, writes the result of the training. Heavy modules are
imported late, because a process that is restarted after the training has ended has nothing left to
do.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from patchline.pipeline import redaction
from patchline.pipeline.errors import WorkerError
from patchline.pipeline.files.atomic_files import write_text
from patchline.pipeline.files.file_locks import try_lock
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import (
    EVENTS_FILE,
    JOB_FILE,
    end_own_group,
    leave,
    report,
)

if TYPE_CHECKING:
    from patchline.pipeline.training.job import TrainingJob
    from patchline.pipeline.training.processes.several_processes import SeveralProcesses

MODULE = "patchline.pipeline.training.processes.rank"
GROUP_FOLDER = "processes"
"""Folder for what the processes of a training share while they run."""
RESULT_FILE = "result.json"
"""Of the group, in its folder."""
_LOCK_FILE = ".leader.lock"
_PARENT_POLL_SECONDS = 0.2
_EARLIER_SECONDS = 60.0


class Done(FrozenModel):
    """The result of a process that does not lead."""


def main(folder: Path, parent: int) -> NoReturn:
    """Take part in the training of a folder, and write its result or its error."""
    redaction.install(streams=True)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    file = folder / GROUP_FOLDER / RESULT_FILE
    if not file.exists():  # otherwise another process has reported an error before a restart
        leads = os.environ["RANK"] == "0"
        content = report(folder, lambda: _lead(folder) if leads else _follow(folder))
        failed = content.startswith('{"error"')
        if failed or leads:
            write_text(file, content)
        if failed:
            os._exit(1)  # which ends the others
    leave()


def _lead(folder: Path) -> FrozenModel:
    from patchline.pipeline.training.processes.leading import lead

    with try_lock(folder / _LOCK_FILE, _EARLIER_SECONDS) as locked:
        if not locked:
            raise WorkerError(
                f"A process of an earlier attempt is still running in {folder}. End it, then retry."
            )
        job = _job_in(folder)
        group = _group(job)
        events = EventWriter(folder / EVENTS_FILE)
        _say_what_happened(events, group.size)
        return lead(job, events, group)


def _follow(folder: Path) -> FrozenModel:
    from patchline.pipeline.training.loop import Training
    from patchline.pipeline.training.parts.refit import Refit
    from patchline.pipeline.training.processes.followers import follow

    job = _job_in(folder)
    group = _group(job)
    kind = Refit if job.part.refit else Training
    follow(kind(job, EventWriter(Path(os.devnull)), group), group)
    return Done()


def _job_in(folder: Path) -> TrainingJob:
    from patchline.pipeline.training.job import TrainingJob

    return TrainingJob.model_validate_json((folder / JOB_FILE).read_text(encoding="utf-8"))


def _say_what_happened(events: EventWriter, size: int) -> None:
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if restarts:
        events.write(
            "warning",
            message=f"A training process ended unexpectedly: all {size} were started again "
            f"(restart {restarts} of {os.environ['TORCHELASTIC_MAX_RESTARTS']}).",
        )


def _group(job: TrainingJob) -> SeveralProcesses:
    from torch.distributed import FileStore  # type: ignore[attr-defined]  # not in its __all__

    from patchline.pipeline.training.machine import choose_device, detect_machine
    from patchline.pipeline.training.processes.several_processes import SeveralProcesses

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    store = FileStore(str(job.folder / GROUP_FOLDER / f"store-{attempt}"), size)
    device = choose_device(job.config.training, detect_machine())
    return SeveralProcesses(rank, size, device, store)


def _end_with(parent: int) -> None:
    """Wait until the parent has ended, then end this process and its data-loader workers."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECONDS)
    end_own_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
