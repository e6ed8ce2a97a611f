"""The command `patchline join`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path


def join(address: str, /) -> None:
    """Join a training run of several machines (training.nodes); waits until it starts.

    Parameters
    ----------
    address
        HOST:PORT, as in the run's training.rendezvous.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException

    from pipeline.training.process_launch import join_training
    from pipeline.training.rendezvous import Rendezvous

    meeting = Rendezvous.of(address)
    print(f"Waiting for a training at {meeting}; stop with Ctrl-C.", file=sys.stderr, flush=True)
    job = meeting.wait_for_job()
    training = job.config.training
    print(
        f"Joining the training of {training.nodes} machines with {training.processes} processes "
        "each.",
        file=sys.stderr,
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="patchline-join-") as folder:
        try:
            join_training(job, meeting, Path(folder))
        except SignalException as error:
            raise KeyboardInterrupt from error
    print("The training has ended.", file=sys.stderr)
