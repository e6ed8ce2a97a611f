"""A worker with a process of its own, both of which would work for ever.

Run as `python -P -m tests.pipeline.workers.family_worker DIR`.
"""

from __future__ import annotations

import subprocess
import sys

from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workers.worker_process import Worker


class Idle(FrozenModel):
    """Its job, and its result."""


FAMILY = Worker("tests.pipeline.workers.family_worker", Idle, Idle)


def _work_for_ever(job: Idle, events: EventWriter) -> Idle:
    child = subprocess.Popen([sys.executable, "-I", "-c", "import time; time.sleep(100_000)"])
    events.write("progress", unit="nothing", done=0, total=1)
    child.wait()
    return job


if __name__ == "__main__":
    FAMILY.main(_work_for_ever)
