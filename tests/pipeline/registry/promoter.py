"""Promote versions on request: `python -m tests.pipeline.registry.promoter NAME FOLDER CONFIG`.

It imports everything, prints `ready`, and then reads one version per line. For each it prints one
JSON line: whether the version was promoted, and the champion that it was compared with.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from patchline.pipeline import quiet_libraries
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.promotion import Request, promote
from patchline.pipeline.registry.registered_models import resolve


def main(name: str, folder: Path, config: PromotionConfig) -> None:
    """Promote the version on each line of standard input."""
    resolve(name)  # opens the store and imports what it needs
    print("ready", flush=True)  # noqa: T201 - its answer
    for number, line in enumerate(sys.stdin):
        reference = resolve(f"{name}/{line.strip()}")
        decision, _ = promote(Request(reference, config), folder / str(number))
        answer = {
            "promoted": decision and decision.promoted,
            "against": decision and decision.champion,
        }
        print(json.dumps(answer), flush=True)  # noqa: T201 - its answer


if __name__ == "__main__":
    quiet_libraries.apply()
    main(sys.argv[1], Path(sys.argv[2]), PromotionConfig.model_validate_json(sys.argv[3]))
