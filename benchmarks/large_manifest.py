"""Time and memory of splits, fingerprint and inspection for a manifest of a million rows.

python -m benchmarks.large_manifest [ROWS]

The rows are made up: 1,000 classes of different sizes, a twentieth of the images occurs twice, and
one in a thousand is damaged. Nothing is read from a disk but the memory of earlier splits.
"""

from __future__ import annotations

import argparse
import gc
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from benchmarks.measured_runs import machine
from pipeline import config_files, quiet_libraries
from pipeline.data import ingestion, split
from pipeline.data import manifest as manifests
from pipeline.data.leakage import given_splits
from pipeline.inspection.class_findings import findings_on_classes
from pipeline.inspection.file_findings import findings_on_size, findings_on_status
from pipeline.inspection.inspecting import summary_of
from pipeline.inspection.same_image_findings import findings_on_duplicates

_CLASSES = 1000
Result = TypeVar("Result")


class _Timer:
    def __init__(self) -> None:
        self.total = 0.0

    def measured(self, name: str, work: Callable[[], Result]) -> Result:
        began = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - began
        self.total += seconds
        print(f"{name:<28} {seconds:6.1f} s   peak {_peak_gb():.2f} GB", flush=True)
        return result


def main() -> None:
    """Print the seconds of each part and the peak memory of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="?", type=int, default=1_000_000)
    asked = parser.parse_args()
    quiet_libraries.apply()
    print(machine(), flush=True)
    manifest = made_manifest(asked.rows)
    gc.collect()
    print(f"{'manifest of ' + format(asked.rows, ',') + ' rows':<28}          {_peak_gb():.2f} GB")
    config = config_files.validated({"name": "large", "data": {"source": "image_folder"}})
    data, timer = config.data, _Timer()
    with tempfile.TemporaryDirectory(prefix="patchline-benchmark-") as name:
        wanted = split.wanted_splits(manifest, data.validation_fraction, data.test_fraction)

        def splits() -> pd.DataFrame:
            named: dict[str, Any] = {"remember": True}
            return ingestion.assign_splits(manifest, config, wanted, "large", Path(name), **named)[
                0
            ]

        timer.measured("splits", splits)
        assigned = timer.measured("splits, all remembered", splits)
    timer.measured("fingerprint", lambda: manifests.fingerprint(assigned))
    rows = manifests.usable(assigned)
    given = given_splits(manifest).reset_index(drop=True)
    found = timer.measured("files and sizes", lambda: [
        *findings_on_status(manifest), *findings_on_size(rows),
    ])  # fmt: skip
    near = np.arange(len(rows))
    found += timer.measured("duplicates", lambda: findings_on_duplicates(rows, given, near))
    divided, splits_made = given == "train", len(wanted) + 1
    found += timer.measured("classes", lambda: findings_on_classes(rows, divided, (), splits_made))
    timer.measured("summary", lambda: summary_of("large", assigned, "made up", tuple(found), ()))
    print(f"{'together':<28} {timer.total:6.1f} s   peak {_peak_gb():.2f} GB; found "
          + ", ".join(f"{each.kind} {each.count:,}" for each in found))  # fmt: skip


def made_manifest(count: int) -> pd.DataFrame:
    """Return a manifest of made-up images, as a scan returns one."""
    generator = np.random.default_rng(0)
    content = np.arange(count)
    twice = generator.random(count) < 0.05  # noqa: PLR2004 - documented above
    content[twice] = generator.integers(0, count, int(twice.sum()))
    label = (_CLASSES * generator.random(count) ** 1.5).astype(int)
    ok = generator.random(count) > 0.001  # noqa: PLR2004 - documented above
    digests = [f"{each * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4 for each in content.tolist()]
    table = pd.DataFrame(
        {
            "path": [f"class_{k:04d}/{i:07d}.jpg" for i, k in enumerate(label.tolist())],
            "label": [f"class_{k:04d}" for k in label.tolist()],
            "split": "",
            "group": "",
            "sha256": digests,
            "pixels": [each[:32] for each in digests],
            "width": generator.integers(300, 700, count),
            "height": generator.integers(300, 700, count),
            "mode": "RGB",
            "bytes": generator.integers(20_000, 200_000, count),
            "status": np.where(ok, "ok", "damaged"),
            "reason": np.where(ok, "", "the file ends too early"),
        }
    )
    return table[manifests.COLUMNS].sort_values("path", ignore_index=True)


def _peak_gb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
