"""How a process that the supervisor started begins: `python -P -m MODULE FOLDER LIFELINE ...`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from patchline.pipeline import quiet_libraries, redaction
from patchline.pipeline.errors import PipelineError
from patchline.pipeline.terminal_words import visible
from patchline.pipeline.workers.host import interruption
from patchline.pipeline.workers.supervision import served_workspace, supervisor_lifeline


def begin() -> tuple[Path, Path, list[str]]:
    """Set up this process so that it ends with the supervisor and logs no secrets.

    The folder becomes the working directory. Ctrl-C in a terminal does not reach this process.

    Returns:
        The folder, the lifeline, and the rest of the command line.
    """
    folder, lifeline = Path(sys.argv[1]), Path(sys.argv[2])
    supervisor_lifeline.end_with_lifeline(lifeline)
    interruption.ignore_ctrl_c()
    quiet_libraries.apply()
    redaction.install(streams=True)
    os.chdir(folder)
    served_workspace.remember_workspace(folder)
    return folder, lifeline, sys.argv[3:]


def main(work: Callable[[], None]) -> None:
    """Do the work of this process; an error becomes the last line of its log."""
    try:
        work()
    except PipelineError as error:
        sys.stderr.write(f"Error: {visible(str(error), lines=True)}\n")
        sys.stderr.flush()
        sys.exit(error.exit_code)
