"""A rehearsal goes through every stage and leaves nothing behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from patchline.flows.training import rehearsal
from patchline.flows.training.dry_run import DryRun
from patchline.pipeline.config_files import requested
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.labels import label_sets
from patchline.pipeline.planning.facts import DataFacts, PlanFacts, Speed
from patchline.pipeline.planning.fine_tuning import FEATURES, fine_tuning_plan
from patchline.pipeline.run_memory.stage_memory import StageMemory
from patchline.pipeline.stages.context import Context, Reporting
from tests.conftest import patchline, patchline_here


def test_two_batches_hold_every_class(photos: Path, tmp_path: Path) -> None:
    """The subset takes the first image of each class before the second of any."""
    config = requested(str(photos), flags={"training": {"batch_size": 3}})
    data = ingest(config, tmp_path / "work", remember=False)
    few = rehearsal._subset(data, config, tmp_path)
    assert few.counts["train"] == 6
    rows = manifests.load(few.manifest_file)
    training = rows[rows["split"] == "train"]
    assert training["label"].value_counts().to_dict() == dict.fromkeys(data.classes, 2)
    assert few.fingerprint != data.fingerprint


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


def test_the_last_blocks_are_estimated_with_features_and_tokens(
    photos: Path, tmp_path: Path
) -> None:
    """Steps at their own rate, what is computed before them, and predictions at that of passes."""
    data = ingest(requested(str(photos)), tmp_path / "work", remember=False)
    counts = {"train": 1_000, "validation": 100, "test": 100}
    data = data.model_copy(update={"counts": counts})
    facts = PlanFacts(
        preset="balanced",
        data=DataFacts(
            training_images=1_000, validation_images=100, test_images=100, classes=5,
            median_side=224,
        ),
        speeds=(Speed(candidate=FEATURES, images_per_second=20.0),),
    )  # fmt: skip
    plan = fine_tuning_plan(facts, {})
    assert plan.settings["training"]["trainable"] == "last_blocks"
    training = {"trainable": "last_blocks", "epochs": 2}
    flags = {"training": training, "model": {"init": "vit.safetensors"}}
    config = requested(None, preset_name="none", flags=flags)
    silent = Reporting(*[lambda *_: None] * 4)
    context = Context(config, StageMemory(tmp_path), silent, tmp_path)
    context.seconds |= {"prepare": 0.0, "read": 0.0, "evaluate": 0.0, "package": 0.0}
    context.seconds |= {"register": 0.0}
    few = data.model_copy(update={"counts": {"train": 16}})
    whole = DryRun(data, config, plan, context)
    estimated, run = rehearsal._estimated(whole, few, context)
    steps = 2 * 1_000 * 3.5 / 3 / 20
    before = 1_200 / 20 + 2 / 3 * 2 * 1_100 / 20
    assert estimated == pytest.approx(steps + before, rel=0.05)
    assert run == pytest.approx(estimated + 200 / 20)


def test_a_run_that_would_fail_late_fails_in_its_rehearsal(tmp_path: Path, photos: Path) -> None:
    """A setting that does not fit the images is the usual sentence, with the usual exit code."""
    flags = ["--preset", "none", "--model.patch-embedding.patch-size", "5"]
    done = patchline_here("run", photos, "--rehearse", *flags, cwd=tmp_path)
    assert done.code == 2
    assert "patch_size 5 does not divide the 32x32 image" in done.err


@pytest.mark.slow
def test_images_without_labels_are_rehearsed(tmp_path: Path, photos: Path) -> None:
    """A folder without class folders is pre-trained on, tested and packaged as an encoder."""
    folder = tmp_path / "unlabelled"
    folder.mkdir()
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        shutil.copy(file, folder / f"{number}.png")
    done = patchline(
        "run", folder, "--rehearse", "--preset", "none", "--objective.name", "mae", cwd=tmp_path
    )
    assert done.code == 0, done.err
    assert "images without labels: " in done.err


@pytest.mark.slow
def test_a_rehearsal_registers_nothing(tmp_path: Path, photos: Path) -> None:
    """Every stage runs, the package is checked, and no run, version or file is left."""
    flags = ["--preset", "quick", "--training.time-limit", "7m", "--training.refit", "--json"]
    compiled = ["--training.compile", "--training.stochastic-depth-ramp", "0.5"]
    done = patchline("run", photos, "--rehearse", *flags, *compiled, cwd=tmp_path)
    assert done.code == 0, done.err
    assert done.json["training_seconds"] == 420
    assert done.json["run_seconds"] > 420
    said = ("Training 2 steps", "Packaging the model", " images/s (", "are not rehearsed")
    for words in (*said, "The model is not compiled"):  # what a run would warn of
        assert words in done.err
    assert not (tmp_path / "mlflow.db").exists()
    assert not (tmp_path / ".patchline/runs").exists()
    assert not list((tmp_path / ".patchline").glob(".building-*"))
