"""The worker with which launchers are checked: `python -P -m MODULE FOLDER`; light to start.

Its job is one word: `done` writes a result, `fail` exits with a code, `beat` writes events without
end. It ends when its standard input closes, as all workers do.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from pathlib import Path

from patchline.pipeline.waiting import at_end_of_input

_FAILED = 7


def main(folder: Path) -> int:
    """Do what the job says, and return the exit code."""
    at_end_of_input(lambda: os._exit(1))
    what = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    if what == "fail":
        return _FAILED
    if what == "beat":
        with (folder / "events.jsonl").open("a", encoding="utf-8", buffering=1) as events:
            for number in itertools.count(1):
                events.write(f"{number}\n")
                time.sleep(0.05)
    (folder / "result.json").write_text('{"result": {}}', encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main(Path(sys.argv[1])))
