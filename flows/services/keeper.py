"""The keeper of periodic duties: `python -P -m patchline.flows.services.keeper FOLDER LIFELINE`.

Each duty runs in a thread of its own while the servers are up. A duty that fails is logged and
retried.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from patchline.flows.services import supervisor
from patchline.pipeline.waiting import Periodic
from patchline.pipeline.workers import supervised_process

logger = logging.getLogger(__name__)

NAME = "keeper"
_BEAT_SECONDS = 5.0
_LONGEST_SECONDS = 600.0
"""A duty that takes longer counts as stuck: the heartbeat stops, and the supervisor restarts us."""


@dataclass
class Duty:
    """A function that is called periodically."""

    where: str
    """Module and function, as `module:function`."""
    every_seconds: float
    last_call: float = 0.0
    last_failure: str = ""

    def start(self) -> None:
        """Call the function now, and then periodically."""
        self.last_call = time.monotonic()
        Periodic(self.run_once, self.every_seconds, 0)

    def run_once(self) -> None:
        """Call the function; a repeated failure is logged once until a call succeeds."""
        self.last_call = time.monotonic()
        try:
            module, _, function = self.where.partition(":")
            getattr(importlib.import_module(module), function)()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            if failure != self.last_failure:
                logger.exception("%s failed and will be retried", self.where)
            self.last_failure = failure
        else:
            if self.last_failure:
                logger.warning("%s succeeded again", self.where)
            self.last_failure = ""


DUTIES = (
    ("patchline.flows.closing.close_runs:close_abandoned_runs", 10.0),
    ("patchline.flows.approval.approval_flow:expire_overdue", 10.0),
    ("patchline.flows.schedules.deployments:drop_missed", 10.0),
    ("patchline.flows.schedules.deployments:continue_interrupted", 5.0),
    ("patchline.flows.new_data.watched_folders:check_folders", 2.0),
    (f"{supervisor.__name__}:announce", 5.0),
)


def _keep(folder: Path) -> None:
    duties = [Duty(*duty) for duty in DUTIES]
    for duty in duties:  # imported here: threads that import the same modules can deadlock
        with contextlib.suppress(Exception):  # the duty itself will log it
            importlib.import_module(duty.where.partition(":")[0])
    for duty in duties:
        duty.start()
    while True:
        longest = max(time.monotonic() - duty.last_call for duty in duties)
        if longest < _LONGEST_SECONDS:
            supervised_process.beat(folder, NAME)
        time.sleep(_BEAT_SECONDS)


def _end(*_: object) -> None:
    logging.shutdown()
    os._exit(0)  # every duty's work is atomic


def _main() -> None:
    folder, _, _ = supervised_process.begin()
    signal.signal(signal.SIGTERM, _end)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    _keep(folder)


if __name__ == "__main__":
    supervised_process.main(_main)
