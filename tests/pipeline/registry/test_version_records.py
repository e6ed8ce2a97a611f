"""What the predictions of a version's run say about images that its folds held out."""

from __future__ import annotations

import pandas as pd
import pytest

from patchline.pipeline.provenance.provenance import Provenance
from patchline.pipeline.provenance.seen_images import SeenImages
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.registry.version_records import VersionRecords


def records(
    predictions: pd.DataFrame, manifest: pd.DataFrame, provenance: Provenance | None = None
) -> VersionRecords:
    """Return the records of a version whose package says what it has seen."""
    made = VersionRecords(
        reference=ModelReference("farm", "1", "models:/m-1"),
        run_id="1",
        metrics={},
        manifest=manifest,
        predictions=predictions,
        root=None,
    )
    made.__dict__["provenance"] = provenance or Provenance()
    return made


MANIFEST = pd.DataFrame(
    {"sha256": list("abcdef"), "split": ["train", "train", "train", "validation", "test", "test"]}
)


@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        ("abcdef", "abcd"),  # the folds predicted training and validation images
        ("def", ""),  # without folds, only the others are predicted
    ],
)
def test_only_folds_judge_training_images(predicted: str, expected: str) -> None:
    """The verdicts of folds are those on training and validation images, by file digest."""
    table = MANIFEST[MANIFEST["sha256"].isin(list(predicted))]
    table = table.assign(
        probabilities=pd.Series(0.1 * table.index, table.index).map(lambda p: [p, 1 - p])
    )
    found = records(table, MANIFEST).of_folds
    assert sorted(found) == list(expected)
    assert all(found[key][0] == pytest.approx(0.1 * "abcdef".index(key)) for key in found)


def test_images_of_the_initial_weights_are_seen() -> None:
    """An image that the weights were trained on before the folds began has no verdict of them."""
    before = pd.DataFrame({"sha256": ["b", "x"], "split": ["train", "train"]})
    table = MANIFEST.assign(probabilities=MANIFEST["sha256"].map(lambda _: [0.5, 0.5]))
    started = Provenance(inherited=SeenImages.of(before, before.iloc[:0]))
    assert sorted(records(table, MANIFEST, started).of_folds) == list("acd")
    unknown = Provenance.without_record("x.pth is a file of unrecognised origin")
    assert records(table, MANIFEST, unknown).of_folds == {}
