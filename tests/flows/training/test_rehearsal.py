"""A rehearsal goes through every stage and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.flows.training import rehearsal
from patchline.flows.training.dry_run import DryRun, dry_run
from patchline.pipeline.config_files import requested
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.labels import label_sets
from patchline.pipeline.planning.facts import DataFacts, PlanFacts, Speed
from patchline.pipeline.planning.fine_tuning import FEATURES, fine_tuning_plan
from patchline.pipeline.run_memory.stage_memory import StageMemory
from patchline.pipeline.stages.context import Context, Reporting
from tests.flows.training.runs import ran, refused, write_unlabelled


def test_two_batches_hold_every_label(tmp_path: Path) -> None:
    """Of sets of labels, the subset has each label in every split, and images without any."""
    source = {"source": "shapes", "options": {"images": 120}}
    flags = {"data": source, "training": {"batch_size": 4}}
    config = requested(None, flags=flags)
    data = ingest(config, tmp_path / "work", remember=False)
    few = rehearsal._subset(data, config, tmp_path)
    rows = manifests.load(few.manifest_file)
    training = rows[rows["split"] == "train"]["label"]
    assert len(training) == 8
    assert set(label_sets.counts_of(training)) == set(data.classes)
    assert "[]" in set(training)


def test_the_estimate_has_steps_features_and_predictions(photos: Path, tmp_path: Path) -> None:
    """Steps at their own rate, what is computed before them, and predictions at that of passes.

    The images of a rehearsal are the first of each class before the second of any.
    """
    training = {"trainable": "last_blocks", "epochs": 2, "batch_size": 3}
    flags = {"training": training, "model": {"init": "vit.safetensors"}}
    config = requested(str(photos), preset_name="none", flags=flags)
    data = ingest(config, tmp_path / "work", remember=False)
    few = rehearsal._subset(data, config, tmp_path)
    rows = manifests.load(few.manifest_file)
    chosen = rows[rows["split"] == "train"]["label"].value_counts()
    assert sorted(chosen.tolist()) == [5, 5, 6]
    counts = {"train": 1_000, "validation": 100, "test": 100}
    facts = PlanFacts(
        preset="balanced",
        data=DataFacts(
            training_images=1_000, validation_images=100, test_images=100, classes=5,
            median_side=224,
        ),
        speeds=(Speed(candidate=FEATURES, images_per_second=20.0),),
    )  # fmt: skip
    plan = fine_tuning_plan(facts, {})
    context = Context(config, StageMemory(tmp_path), Reporting(*[lambda *_: None] * 4), tmp_path)
    stages = ("prepare", "read", "evaluate", "package", "register")
    context.seconds |= dict.fromkeys(stages, 0.0)
    whole = DryRun(data.model_copy(update={"counts": counts}), config, plan, context)
    estimated, run = rehearsal._estimated(whole, few, context)
    steps = 2 * 1_000 * 3.5 / 3 / 20
    before = 1_200 / 20 + 2 / 3 * 2 * 1_100 / 20
    assert estimated == pytest.approx(steps + before, rel=0.05)
    assert run == pytest.approx(estimated + 200 / 20)


def test_a_run_that_would_fail_late_fails_in_its_rehearsal(tmp_path: Path, photos: Path) -> None:
    """A setting that does not fit the images is the usual sentence, with the usual exit code."""
    flags = "--rehearse --preset none --model.patch-embedding.patch-size 5"
    words = "patch_size 5 does not divide the 32x32 image"
    assert words in refused(tmp_path, f"{photos} {flags}")


def test_unsuitable_weights_are_found_before_an_image_is_opened(
    photos: Path, tmp_path: Path
) -> None:
    """Reading a large folder takes minutes, finding a file of weights seconds."""
    config = requested(str(photos), flags={"model": {"init": "gone.safetensors"}})
    workspace = tmp_path / "work"
    with pytest.raises(ConfigError, match=r"gone\.safetensors does not exist"):
        dry_run(config, workspace)
    assert not list(workspace.rglob("*.parquet"))


@pytest.mark.slow
def test_images_without_labels_are_rehearsed(tmp_path: Path) -> None:
    """A folder without class folders is pre-trained on, tested and packaged as an encoder."""
    write_unlabelled(tmp_path / "more")
    _, said = ran(tmp_path, "more --rehearse --preset none --objective.name mae")
    assert "images without labels: " in said


@pytest.mark.slow
def test_a_rehearsal_registers_nothing(tmp_path: Path, photos: Path) -> None:
    """Every stage runs, the package is checked, and no run, version or file is left."""
    flags = (
        "--rehearse --preset quick --training.time-limit 7m --training.refit --training.compile "
        "--training.stochastic-depth-ramp 0.5"
    )
    found, said = ran(tmp_path, f"{photos} {flags}")
    assert found["training_seconds"] == 420
    assert found["run_seconds"] > 420
    stages = ("Training 2 steps", "Packaging the model", " images/s (", "are not rehearsed")
    for words in (*stages, "The model is not compiled"):  # what a run would warn of
        assert words in said
    assert not (tmp_path / "mlflow.db").exists()
    assert not (tmp_path / ".patchline/runs").exists()
    assert not list((tmp_path / ".patchline").glob(".building-*"))
