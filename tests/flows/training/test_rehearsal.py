"""A rehearsal goes through every stage and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.flows.training.dry_run import _subset, dry_run
from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.labels.label_sets import label_pairs
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.errors import ConfigError
from tests.flows.training.runs import ran, refused


def test_two_batches_hold_every_label(tmp_path: Path) -> None:
    """Of sets of labels, the subset has each label in every split, and images without any."""
    source = {"source": "shapes", "options": {"images": 120}}
    flags = {"data": source, "training": {"batch_size": 4}}
    config = build_config(None, flags=flags)
    data = ingest(config, tmp_path / "work", remember=False)
    few = _subset(data, config, tmp_path)
    rows = manifests.load(few.manifest_file)
    training = rows[rows["split"] == "train"]["label"]
    assert len(training) == 8
    assert label_pairs(training, data.task).names == data.classes
    assert "[]" in set(training)


def test_a_run_that_would_fail_late_fails_in_its_rehearsal(tmp_path: Path, photos: Path) -> None:
    """A setting that does not fit the images is the usual sentence, with the usual exit code."""
    flags = "--rehearse --preset none --model.patch-embedding.patch-size 5"
    words = "patch_size 5 does not divide the 32x32 image"
    assert words in refused(tmp_path, f"{photos} {flags}")


def test_unsuitable_weights_are_found_before_an_image_is_opened(
    photos: Path, tmp_path: Path
) -> None:
    """Reading a large folder takes minutes, finding a file of weights seconds."""
    config = build_config(str(photos), flags={"model": {"init": "gone.safetensors"}})
    workspace = tmp_path / "work"
    with pytest.raises(ConfigError, match=r"gone\.safetensors does not exist"):
        dry_run(config, workspace)
    assert not list(workspace.rglob("*.parquet"))


@pytest.mark.slow
def test_a_rehearsal_registers_nothing(tmp_path: Path, photos: Path) -> None:
    """Every stage runs, the package is checked, and no run, version or file is left."""
    flags = (
        "--rehearse --preset none --training.time-limit 7m --training.final-model refit "
        "--training.compile --evaluation.explanations=false"
    )
    env = {"CXX": "no compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    found, said = ran(tmp_path, f"{photos} {flags}", env)
    assert found["training_seconds"] == 420
    assert found["run_seconds"] > 420
    stages = ("Training 2 steps", "Packaging the model", "are not rehearsed")
    for words in (*stages, "The model is not compiled"):  # what a run would warn of
        assert words in said
    assert not (tmp_path / "mlflow.db").exists()
    assert not (tmp_path / ".patchline/runs").exists()
    assert not list((tmp_path / ".patchline").glob(".building-*"))
