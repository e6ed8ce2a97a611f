"""Imported as `sitecustomize`: each worker of a run leaves the names of the modules it has loaded.

They are in `modules-WORKER.txt` of the folder that the run works in.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

_FOLDER = Path.cwd()
_exit = os._exit


def _leave_names() -> None:
    program = sys.orig_argv
    if "-m" in program and (module := program[program.index("-m") + 1]).startswith("patchline."):
        names = sorted(name for name in list(sys.modules) if name.startswith("patchline."))
        file = _FOLDER / f"modules-{module}.txt"
        file.write_text("\n".join(names), encoding="utf-8")


def _leave_and_exit(status: int) -> None:
    _leave_names()
    _exit(status)


atexit.register(_leave_names)
os._exit = _leave_and_exit  # type: ignore[assignment]  # it never returns either
