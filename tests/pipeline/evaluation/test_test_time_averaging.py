"""Test-time averaging: validation decides, test reports, and the package does as was decided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from patchline.pipeline.evaluation.__main__ import predict
from patchline.pipeline.evaluation.prediction_job import PredictionJob
from patchline.pipeline.evaluation.test_time_averaging import (
    TestTimeAveraging,
    decided,
    decided_by_map,
)
from patchline.pipeline.metrics.image_groups import ImageGroups
from patchline.pipeline.metrics.paired_test import paired_difference
from patchline.pipeline.models.model_files import load_model
from patchline.pipeline.packaging.__main__ import package
from patchline.pipeline.packaging.job import PackagingJob
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.workers.event_log import EventWriter
from tests.conftest import Run


def _right(wrong: range, count: int = 200) -> np.ndarray:
    right = np.ones(count, bool)
    right[wrong] = False
    return right


def test_only_a_significant_gain_is_worth_twice_the_cost() -> None:
    """Ten images more are; three more, none, or fewer are not."""
    found = decided(_right(range(20)), _right(range(10)))
    assert found.is_on
    assert "10 are correct only together with the mirror image and 0 only alone" in found.sentence()
    assert not decided(_right(range(20)), _right(range(17))).is_on
    assert not decided(_right(range(20)), _right(range(20))).is_on
    assert not decided(_right(range(10)), _right(range(20))).is_on
    frames = decided(_right(range(20)), _right(range(10)), ImageGroups.of(np.arange(200) // 10))
    assert not frames.is_on  # ten images of one video are one observation
    assert frames.sentence().startswith("off: of 200 validation images in 20 groups, 10 are")
    assert decided(_right(range(0), 0), _right(range(0), 0)).state == "off"  # nothing is known


def test_the_sentence_has_the_test_images_once_they_are_known() -> None:
    """Or the reason why nothing was tried."""
    pair = paired_difference(_right(range(5)), _right(range(4)))
    found = TestTimeAveraging(state="on", validation=pair, test=pair)
    assert found.sentence().count("of 200") == 2
    why = TestTimeAveraging(state="not tried", why="mirror images do not show the same classes")
    assert why.sentence() == "not tried, because mirror images do not show the same classes"
    assert not why.is_on


def _places(finished: Run) -> tuple[Path, Path, Path]:
    work = finished.folder / ".patchline"
    [best], [manifest] = work.glob("runs/*/training/best"), work.glob("manifests/*.parquet")
    [store] = [each for each in work.glob("prepared/*") if not each.name.startswith(".")]
    return best, manifest, store


def test_the_worker_compares_both_on_the_validation_images(
    finished_run: Run, tmp_path: Path
) -> None:
    """Stripes that rise are falling ones in the mirror, so averaging cannot win, and stays off."""
    best, manifest, store = _places(finished_run)
    common = {"model_folder": best, "manifest_file": manifest, "store": store, "device": "cpu"}
    plain, tried = (
        PredictionJob(
            **common, splits=("validation", "test"), file=tmp_path / name, tries_averaging=tries
        )
        for name, tries in (("plain", False), ("tried", True))
    )
    assert predict(plain, EventWriter(tmp_path / "events.jsonl")).averaging is None
    found = predict(tried, EventWriter(tmp_path / "events.jsonl")).averaging
    assert found is not None
    assert found.state == "off"
    assert found.test is None
    assert found.validation is not None
    table = pd.read_parquet(tried.file)
    assert found.validation.difference.n == (table["split"] == "validation").sum()
    pd.testing.assert_frame_equal(table, pd.read_parquet(plain.file))


def test_sets_of_labels_decide_by_map() -> None:
    """Scores that are less noisy together win by the paired bootstrap; equal ones do not."""
    generator = np.random.default_rng(0)
    labels = (generator.random((200, 3)) < 0.3).astype(np.uint8)
    noise = generator.normal(size=(2, 200, 3))
    alone, together = labels + noise[0], labels + (noise[0] + noise[1]) / 2
    found = decided_by_map(labels, alone, together)
    assert found.state == "on"
    assert "mAP is" in found.sentence()
    assert "together with the mirror image" in found.sentence()
    assert decided_by_map(labels, alone, alone).state == "off"
    assert type(found).model_validate_json(found.model_dump_json()) == found


def test_the_package_does_as_was_decided(finished_run: Run, tmp_path: Path) -> None:
    """Its graph averages, its description says so, and a model loaded from it averages, too."""
    best, manifest, store = _places(finished_run)
    job = PackagingJob(
        model_folder=best,
        manifest_file=manifest,
        store=store,
        calibration=None,
        reported=None,
        folder=tmp_path / "package",
        averages_views=True,
    )
    package(job, EventWriter(tmp_path / "events.jsonl"))
    made = PackagedModel(job.folder / "model.onnx", job.folder / "model.json", 1)
    spec = made.image
    shape = (3, spec["height"], spec["width"], spec["channels"])
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    mirrored = np.ascontiguousarray(images[:, :, ::-1])
    assert np.allclose(made.probabilities(images), made.probabilities(mirrored), atol=1e-5)
    model, description = load_model(job.folder)
    assert description.model.settings["test_time_flip"] is True
    assert getattr(model, "test_time_flip") is True  # noqa: B009 - a plugin's own attribute
    assert "test-time flip" in (job.folder / "model_card.md").read_text(encoding="utf-8")
