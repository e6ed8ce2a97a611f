"""One rank: `python -P -m patchline.pipeline.training.processes.rank FOLDER PARENT`.

`process_launch.py` starts it, with the environment variables of torchrun; PARENT is the id of the
process that does so. Every rank does the same fit, and rank 0 writes its result. Heavy modules are
imported late, because a rank that is restarted after the training has ended has nothing left to do.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from patchline.pipeline import redaction
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.training.processes.machines import Machines, own_rank
from patchline.pipeline.waiting import Periodic
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import (
    EVENTS_FILE,
    JOB_FILE,
    last_worker_gone,
    leave,
    report,
)
from patchline.pipeline.workers.worker_start import end_own_group
from patchline.pipeline.workspace.files.atomic_files import write_text

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from patchline.pipeline.training.job import TrainingJob
    from patchline.pipeline.training.processes.ranks import Ranks

MODULE = "patchline.pipeline.training.processes.rank"
RANKS_FOLDER = "processes"
"""Folder for what the ranks of a training run share while they run."""
RESULT_FILE = "result.json"
"""Result of the ranks, in their folder."""
RESTART_FILE = "restart"
"""File that tells that all ranks have to start again."""
_LOCK_FILE = ".first.lock"
_PARENT_POLL_SECONDS = 0.2


def main(folder: Path, parent: int) -> NoReturn:
    """Take part in the training run of a folder, and write its result or an error."""
    redaction.install(streams=True)
    # Its data-loader workers end with it.
    Periodic(lambda: os.getppid() == parent or end_own_group(), _PARENT_POLL_SECONDS)
    shared, machines = folder / RANKS_FOLDER, Machines.of(folder)
    has_ended = any((shared / name).exists() for name in (RESULT_FILE, RESTART_FILE))
    if not has_ended and not machines.said(_attempt()):
        _take_part(folder, machines)
    leave()  # otherwise, another rank has ended all of them, and the agent has restarted them


def _take_part(folder: Path, machines: Machines) -> None:
    from patchline.pipeline.training.job import TrainingJob
    from patchline.pipeline.training.out_of_memory import HALVINGS_FILE, RanksRestart

    is_first, shared = own_rank() == 0, folder / RANKS_FOLDER
    job = TrainingJob.from_file(shared / JOB_FILE)

    def end(words: dict[str, str]) -> None:
        """Say how the attempt has ended, on this machine and on the others."""
        take_words(shared, job.folder, json.dumps(words))
        machines.say(_attempt(), json.dumps(words))

    try:
        content = report(job.folder, lambda: _fit(job, folder, machines, is_first=is_first))
    except RanksRestart:
        end({RESTART_FILE: (job.folder / HALVINGS_FILE).read_text(encoding="utf-8")})
        os._exit(1)  # which ends the others
    failed = content.startswith('{"error"')
    if failed or is_first:
        end({RESULT_FILE: content})
    if failed:
        os._exit(1)


def _attempt() -> str:
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def take_words(shared: Path, folder: Path, words: str) -> None:
    """Write how an attempt has ended into the files that say so on this machine.

    Args:
        shared: folder for what the ranks share.
        folder: the folder of the job.
        words: the contents of the files, by name, as JSON; or nothing.
    """
    from patchline.pipeline.training.out_of_memory import HALVINGS_FILE

    for name, content in json.loads(words or "{}").items():
        if name == RESTART_FILE:
            write_text(folder / HALVINGS_FILE, content)
        write_text(shared / name, content)


def _fit(job: TrainingJob, folder: Path, machines: Machines, *, is_first: bool) -> FrozenModel:
    from patchline.pipeline.training.processes.ranks import name_stopped_ranks

    alone = last_worker_gone(folder, _LOCK_FILE) if is_first else nullcontext()
    with alone, name_stopped_ranks():
        events = EventWriter(job.folder / EVENTS_FILE if is_first else Path(os.devnull))
        if is_first:
            _say_what_happened(events, _restarts(machines))
        return fit(job, events, _ranks(job, folder, machines))


def fit(job: TrainingJob, events: EventWriter, ranks: Ranks) -> FrozenModel:
    """Train to the end as one of several ranks, and return the result of the job's part.

    Args:
        job: the job, the same on all ranks.
        events: the writer of events; those of ranks other than the first are not read.
        ranks: the ranks that train together.
    """
    from patchline.pipeline.training.out_of_memory import explain_out_of_memory
    from patchline.pipeline.training.parts.after_folds import fit_all_weights
    from patchline.pipeline.training.parts.last_blocks import tokens_together
    from patchline.pipeline.training.parts.probe import probe_together
    from patchline.pipeline.training.parts.stored_tokens import fit_together

    trainable = job.config.training.trainable
    with explain_out_of_memory():
        if trainable == "last_blocks":
            return (tokens_together if job.tokens is None else fit_together)(job, events, ranks)
        if trainable == "head":
            return probe_together(job, events, ranks)
        return fit_all_weights(job, events, ranks)


def _restarts(machines: Machines) -> int:
    """Return how often all ranks were started again; called once by rank 0 of each start."""
    if not machines.are_several:
        return int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    # An agent counts only those that a process of its own machine has caused.
    starts = machines.reach_store().add(f"starts-{os.environ['TORCHELASTIC_RUN_ID']}", 1)
    return int(starts) - 1


def _say_what_happened(events: EventWriter, restarts: int) -> None:
    if restarts:
        events.write(
            "warning",
            message=f"A training process ended unexpectedly: all {os.environ['WORLD_SIZE']} were "
            f"started again (restart {restarts} of {os.environ['TORCHELASTIC_MAX_RESTARTS']}).",
        )


def _ranks(job: TrainingJob, folder: Path, machines: Machines) -> Ranks:
    from patchline.pipeline.training.machine import choose_device, detect_machine
    from patchline.pipeline.training.processes.ranks import Place, Ranks

    size = int(os.environ["WORLD_SIZE"])
    device = choose_device(job.config.training, detect_machine(), len(machines.nodes))
    local = (int(os.environ[name]) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    store = _store(folder, machines, size)
    place = Place(own_rank(), size, *local)
    return Ranks(place, device, store, shares_folder=machines.shares_folder)


def _store(folder: Path, machines: Machines, size: int) -> Store:
    """Return the store through which the ranks of one attempt find each other."""
    from torch.distributed import FileStore, PrefixStore  # type: ignore[attr-defined]  # not in its __all__

    if not machines.are_several:
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        return FileStore(str(folder / RANKS_FOLDER / f"store-{attempt}"), size)
    # The agents count restarts each for itself; the address that they agree on is new each time.
    agreed = f"{os.environ['TORCHELASTIC_RUN_ID']}-{os.environ['MASTER_PORT']}"
    return PrefixStore(f"ranks-{agreed}", machines.reach_store())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
