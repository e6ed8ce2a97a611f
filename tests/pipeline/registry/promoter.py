"""A process that promotes when told: `python -m tests.pipeline.registry.promoter NAME FOLDER`.

It imports everything, says `ready`, and then reads lines, each with a version. It answers each by
one JSON line: whether the version was promoted, and against which champion it was held.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pipeline import quiet_libraries
from pipeline.registry.promotion import Request, promote
from pipeline.registry.registered_models import resolve
from tests.pipeline.registry.made_versions import QUICK


def main(name: str, folder: Path) -> None:
    """Answer one line after the other."""
    resolve(name)  # opens the store and imports what it needs
    print("ready", flush=True)  # noqa: T201 - its answer
    for number, line in enumerate(sys.stdin):
        reference = resolve(f"{name}/{line.strip()}")
        decision, _ = promote(Request(reference, QUICK), folder / str(number))
        answer = {
            "promoted": decision and decision.promoted,
            "against": decision and decision.champion,
        }
        print(json.dumps(answer), flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    quiet_libraries.apply()
    main(sys.argv[1], Path(sys.argv[2]))
