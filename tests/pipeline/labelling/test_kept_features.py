"""What a network has computed for images is kept by the digest of their files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from patchline.pipeline.labelling.server.kept_features import KeptFeatures


def test_results_outlast_the_process_and_a_damaged_file_costs_its_own_only(tmp_path: Path) -> None:
    """In any order of the images."""
    kept = KeptFeatures(tmp_path / "network", ("probabilities", "features"))
    results = np.eye(2, 3), np.arange(8.0).reshape(2, 4)
    kept.add(["a", "b"], results)
    kept.add(["c"], [each[:1] for each in results])
    again = KeptFeatures(tmp_path / "network", ("probabilities", "features"))
    for stored, computed in zip(again.of(["b", "a"]), results, strict=True):
        np.testing.assert_array_equal(stored, computed[::-1])
    first = next(file for file in (tmp_path / "network").iterdir() if _holds(file, "a"))
    first.write_bytes(first.read_bytes()[:200])
    left = KeptFeatures(tmp_path / "network", ("probabilities", "features"))
    assert ("a" in left, "c" in left) == (False, True)


def _holds(file: Path, digest: str) -> bool:
    with np.load(file) as stored:
        return digest in stored["digests"]
