"""Run `patchline run` for a benchmark, in an empty folder, and describe the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from patchline.pipeline import quiet_libraries
from patchline.pipeline.workspace.tracking import provenance

PATCHLINE = Path(sys.executable).parent / "patchline"


def machine() -> str:
    """Return hardware, package versions and commit in one line."""
    hardware = provenance.hardware()
    head, dirty = provenance.commit()
    return (
        f"{hardware['processor']}, {hardware['cores']} cores, {hardware['memory_gib']} GiB; "
        f"torch {provenance.package_versions()['torch']}; "
        f"commit {head[:12] or 'unknown'}{' with changes' if dirty else ''}"
    )


def measure_run(
    *arguments: str, folder: Path | None = None, patchline: Path = PATCHLINE
) -> dict[str, Any]:
    """Run `patchline run`, of this environment or another one, and return its summary.

    It also gets `began`, `wall_seconds`, `first_step_seconds` and the `training`'s result, which is
    that of the first fold where the run has folds.
    """
    quiet_libraries.apply()
    folder = folder or Path(tempfile.mkdtemp(prefix="patchline-benchmark-"))
    began = time.time()
    done = subprocess.run(
        [str(patchline), "run", *arguments, "--json"],
        cwd=folder,
        env=os.environ,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    summary: dict[str, Any] = json.loads(done.stdout)
    summary["began"] = began
    summary["wall_seconds"] = time.time() - began
    training = _first_training(Path(summary["config"]).parent)
    result = json.loads((training / "result.json").read_text(encoding="utf-8"))
    summary["training"] = result["result"]
    lines = (training / "events.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [event for event in map(json.loads, lines) if event["kind"] == "progress"]
    summary["first_step_seconds"] = steps[0]["time"] - began
    return summary


def _first_training(run_folder: Path) -> Path:
    """Return the folder of a run's training, or of its first fold."""
    folds = sorted(run_folder.glob("folds/*/training"))  # their names begin with the time
    return folds[0] if folds else run_folder / "training"
