"""The keeper: `python -P -m flows.services.keeper FOLDER LIFELINE`.

What has to be looked after while the servers run, each duty in a thread of its own. A duty that
fails is logged and tried again.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from flows.services import child, restarts

logger = logging.getLogger(__name__)

NAME = "keeper"
_BEAT_SECONDS = 5.0
_LONGEST_SECONDS = 600.0
"""After so long a duty counts as stuck; then the beats stop, and the supervisor acts."""


@dataclass
class Duty:
    """A function that is called again and again."""

    where: str
    """Module and function, as `module:function`."""
    every_seconds: float
    last_seen: float = 0.0
    last_words: str = ""

    def run_for_ever(self) -> None:
        """Do it, rest, and do it again."""
        while True:
            self.last_seen = time.monotonic()
            self.run_once()
            time.sleep(self.every_seconds)

    def run_once(self) -> None:
        """Do it; the same failure is logged once until it goes well again."""
        try:
            module, _, function = self.where.partition(":")
            getattr(importlib.import_module(module), function)()
        except Exception as error:
            words = f"{type(error).__name__}: {error}"
            if words != self.last_words:
                logger.exception("%s failed and is tried again", self.where)
            self.last_words = words
        else:
            if self.last_words:
                logger.warning("%s goes well again", self.where)
            self.last_words = ""


DUTIES = (
    ("flows.closing.close_runs:close_abandoned_runs", 10.0),
    ("flows.approval.questions:expire_overdue", 10.0),
    ("flows.schedules.missed_runs:drop_missed", 10.0),
    ("flows.schedules.missed_runs:continue_interrupted", 5.0),
    ("flows.new_data.watched_folders:look", 2.0),
    (f"{restarts.__name__}:announce", 5.0),
)


def _keep(folder: Path) -> None:
    for (
        where,
        _,
    ) in DUTIES:  # here, because threads that import the same modules can lock each other
        with contextlib.suppress(Exception):  # the duty itself will log it
            importlib.import_module(where.partition(":")[0])
    duties = [Duty(*duty, last_seen=time.monotonic()) for duty in DUTIES]
    for duty in duties:
        threading.Thread(target=duty.run_for_ever, name=duty.where, daemon=True).start()
    while True:
        longest = max(time.monotonic() - duty.last_seen for duty in duties)
        if longest < _LONGEST_SECONDS:
            child.beat(folder, NAME)
        time.sleep(_BEAT_SECONDS)


def _end(*_: object) -> None:
    logging.shutdown()
    os._exit(0)  # what a duty does is whole or not at all


def _main() -> None:
    folder, _, _ = child.begin()
    signal.signal(signal.SIGTERM, _end)
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    _keep(folder)


if __name__ == "__main__":
    child.main(_main)
