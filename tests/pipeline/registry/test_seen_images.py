"""Images that a version or its ancestors have seen, in whatever format, store or copy they come."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import SeenBefore
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.seen_images import (
    about_test_images,
    caveat_on_test_images,
    count_seen_images,
    describe_seen_images,
    with_seen_images,
)
from patchline.pipeline.evaluation.tasks import SINGLE
from patchline.pipeline.models.provenance import Provenance, Published, SeenImages
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.registry.version_evaluation import EvaluationChoices, select
from patchline.pipeline.registry.version_records import (
    VersionRecords,
    available_records,
    load_records,
)
from patchline.pipeline.workspace.tracking.tracking_store import client
from tests.pipeline.data.test_ingestion import config_of
from tests.pipeline.registry.made_versions import made_manifest, make_version, seen_in

pytestmark = pytest.mark.usefixtures("own_store")


def _records(
    manifest: pd.DataFrame | None,
    provenance: Provenance | None = None,
    predictions: pd.DataFrame | None = None,
    root: Path | None = None,
) -> VersionRecords:
    """Return the records of a version whose package says what it has seen."""
    if predictions is None:
        predictions = pd.DataFrame({"sha256": [], "probabilities": []})
    records = VersionRecords(ModelReference("x", "1", ""), "", {}, manifest, predictions, root)
    records.__dict__.update(provenance=provenance or Provenance(), task=SINGLE)
    return records


@pytest.mark.parametrize(("knows_pixels", "has_run"), [(True, False), (True, True), (False, True)])
def test_other_formats_of_seen_images_are_left_out(
    photos: Path, *, knows_pixels: bool, has_run: bool
) -> None:
    """By pixels where the manifest of the training knows them, and by the file otherwise."""
    trained = ingestion.ingest(config_of(photos), photos.parent / "work")
    known: pd.DataFrame = manifests.load(trained.manifest_file)
    if not knows_pixels:
        known = known.drop(columns="pixels")
    for file in list(photos.rglob("*.png")):
        Image.open(file).save(file.with_suffix(".bmp"))
        file.unlink()
    data = ingestion.scan(config_of(photos), photos.parent / "work")
    records = _records(known if has_run else None, seen_in(known), root=photos)
    selection = select(data, records, ("across", "down", "rising"), EvaluationChoices())
    assert len(selection.rows) == (trained.counts["test"] if knows_pixels else 60)


def test_a_package_knows_what_its_ancestors_have_seen(tmp_path: Path) -> None:
    """Whatever the registry's runs say: they may be gone, or of another store."""
    first = seen_in(made_manifest())
    other_split = made_manifest(test=range(1000, 1100), train=range(100), validation=range(50, 60))
    second = seen_in(other_split).from_initial(first)
    manifest = made_manifest(test=range(900, 950))
    third = seen_in(manifest).from_initial(second)
    reference = make_version("made", tmp_path / "third", manifest=manifest, provenance=third)
    images = made_manifest(range(900, 1100), range(100), range(150, 160))
    for gone in (False, True):
        if gone:
            run = client().get_run(load_records(reference).run_id)
            shutil.rmtree(run.info.artifact_uri.removeprefix("file://"))
        records = available_records(reference)
        assert (records.manifest is None) == gone
        seen = records.has_seen(images)
        assert images.loc[~seen, "path"].str.extract(r"(\d+)")[0].astype(int).tolist() == [
            *range(950, 1000),
            *range(150, 160),
        ]
        assert records.provenance.summary.is_known


def test_images_that_the_initial_weights_have_seen_are_counted(tmp_path: Path) -> None:
    """Trained on by any ancestor, or for a test image used for model selection by one."""
    first = seen_in(made_manifest())
    other = seen_in(made_manifest(range(10), range(20, 30), range(40, 50)))
    later = other.from_initial(seen_in(made_manifest()).from_initial(first))
    file = tmp_path / "new.parquet"
    manifests.save(made_manifest(), file)
    assert (
        count_seen_images(file, first).counts == {}
    )  # the usual warm start: the splits are remembered
    assert count_seen_images(file, later).counts == {"test": 20}
    manifests.save(made_manifest(range(905, 1010), range(50, 60), range(940, 951)), file)
    assert count_seen_images(file, first).counts == {"test": 45 + 10}
    rows = made_manifest()
    used = rows[rows["split"].isin(["train", "validation"])]
    refitted = Provenance(SeenImages.of(used, used.iloc[:0]))
    assert count_seen_images(file, other.from_initial(refitted)).counts == {
        "validation": 10,
        "test": 55,
    }
    grouped = made_manifest()
    grouped["group"] = [f"patient {number % 40}" for number in range(len(grouped))]
    manifests.save(grouped.iloc[:100], file)  # of the test split
    related = count_seen_images(file, seen_in(grouped.iloc[200:210]))
    assert (related.counts, related.related) == ({}, 30)
    [note] = describe_seen_images(related, {"test": 100})
    assert note.startswith("30 test images are in groups of which the initial weights have seen")
    assert "30 of these images are in groups" in caveat_on_test_images(related)


def test_optimistic_metrics_are_named(photos: Path) -> None:
    """Images that the initial weights have seen are a note, and the report does not deny them.

    Neither does it deny what is not known, with or without seen images.
    """
    data = ingestion.ingest(config_of(photos), photos.parent / "work")
    assert with_seen_images(data, SeenBefore()) == data
    assert "These images were not used for training" in about_test_images(data.seen_before)
    assert not caveat_on_test_images(data.seen_before)
    seen = with_seen_images(data, SeenBefore(counts={"validation": 2, "test": 1}))
    assert "2 of the" in seen.notes[-2]
    assert "test images was used to train or select the initial weights" in seen.notes[-1]
    assert about_test_images(seen.seen_before).startswith("1 of these images was used to train")
    published = Published(name="timm:vit_small", sha256="0" * 64)
    for provenance, words in (
        (Provenance.without_record("x.pth is of unrecognised origin"), "x.pth is of unrecognised"),
        (Provenance(published=(published,)), "the training images of timm:vit_small"),
    ):
        for counts in ({}, {"test": 3}):
            seen = with_seen_images(data, SeenBefore(counts=counts, provenance=provenance.summary))
            assert words in seen.notes[-1]
            assert "the metrics are optimistic" in seen.notes[-1]
            said = about_test_images(seen.seen_before)
            assert words.lower() in said.lower()
            assert "not used for training" not in said
            assert "not recorded as used for training" in said


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
    found = _records(MANIFEST, predictions=table).of_folds
    assert sorted(found) == list(expected)
    assert all(found[key][0] == pytest.approx(0.1 * "abcdef".index(key)) for key in found)


def test_images_of_the_initial_weights_are_seen() -> None:
    """An image that the weights were trained on before the folds began has no verdict of them."""
    before = pd.DataFrame({"sha256": ["b", "x"], "split": ["train", "train"]})
    table = MANIFEST.assign(probabilities=MANIFEST["sha256"].map(lambda _: [0.5, 0.5]))
    started = Provenance(inherited=SeenImages.of(before, before.iloc[:0]))
    assert sorted(_records(MANIFEST, started, table).of_folds) == list("acd")
    unknown = Provenance.without_record("x.pth is a file of unrecognised origin")
    assert _records(MANIFEST, unknown, table).of_folds == {}
