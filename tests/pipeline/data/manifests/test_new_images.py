"""What counts as new between two manifests."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.earlier_manifests import manifest_of_last_run
from patchline.pipeline.data.manifests.manifest import with_task
from patchline.pipeline.data.manifests.new_images import compare
from patchline.pipeline.labels.label_sets import MULTI_LABEL, encoded
from patchline.pipeline.tracking import tracked_run

Images = list[tuple[int, str]]
"""Content and class of each file."""

_images = st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), max_size=15)


def _manifest(images: Images, status: str = "ok", prefix: str = "") -> pd.DataFrame:
    rows = [
        {
            "path": f"{label}/{prefix}{position}.png",
            "label": label,
            "sha256": f"{content:064x}",
            "status": status,
        }
        for position, (content, label) in enumerate(images)
    ]
    table = pd.DataFrame(rows, columns=manifests.COLUMNS)
    return table.astype({"path": "str", "label": "str", "sha256": "str", "status": "str"})


@settings(max_examples=30, deadline=None)
@given(_images, _images)
def test_new_and_removed_are_the_differences_of_the_sets_of_contents(
    before: Images, now: Images
) -> None:
    """An image is new if no file before had its content; the way back is the opposite."""
    found = compare(_manifest(before), _manifest(now))
    old, current = {content for content, _ in before}, {content for content, _ in now}
    assert (found.new, found.removed) == (len(current - old), len(old - current))
    assert found.images == len(current)
    assert not found.first
    back = compare(_manifest(now), _manifest(before))
    assert (found.new, found.removed, found.relabelled) == (back.removed, back.new, back.relabelled)


@settings(max_examples=30, deadline=None)
@given(_images)
def test_copies_and_other_names_are_not_new(images: Images) -> None:
    """The same contents in the same classes, renamed and doubled, are no change at all."""
    found = compare(_manifest(images), _manifest(images + images[::-1], prefix="renamed-"))
    assert (found.new, found.removed, found.relabelled) == (0, 0, 0)


@settings(max_examples=30, deadline=None)
@given(_images)
def test_without_an_earlier_manifest_everything_is_new(images: Images) -> None:
    """A first training counts every content once."""
    found = compare(None, _manifest(images))
    assert found.first
    assert found.new == found.images == len({content for content, _ in images})
    assert found.removed == found.relabelled == 0


def test_an_image_in_another_class_is_relabelled_and_not_new() -> None:
    """A file that was moved to another class folder is told apart from a new one."""
    found = compare(_manifest([(1, "a"), (2, "b")]), _manifest([(1, "b"), (2, "b"), (3, "c")]))
    assert (found.new, found.relabelled, found.removed) == (1, 1, 0)
    assert found.new_by_class == {"c": 1}
    assert found.relabelled_examples == ("b/0.png",)
    assert found.words() == "1 new image, 1 relabelled"


def test_the_same_pixels_in_another_file_are_not_new() -> None:
    """A re-encoded copy is not new, where the pixels are known now or in both manifests."""
    before, now = _manifest([(1, "a")]), _manifest([(1, "a"), (2, "a"), (3, "a")])
    now["pixels"] = ["p", "p", "q"]
    assert compare(before, now).new == 1
    before["pixels"] = ["p"]
    found = compare(before, now[1:].reset_index(drop=True))
    assert (found.new, found.removed, found.images) == (1, 0, 2)


def test_a_damaged_image_counts_on_neither_side() -> None:
    """Only images that could be trained on are compared."""
    damaged, whole = _manifest([(1, "a")], status="damaged"), _manifest([(1, "a")])
    assert compare(damaged, whole).new == 1
    assert compare(whole, damaged).removed == 1


def _finish(config: RunConfig, manifest: pd.DataFrame | None, folder: Path) -> None:
    with tracked_run.owned_run(config, folder / "runs", {}) as run:
        if manifest is not None:
            file = folder / f"{run.run_id}.parquet"
            manifests.save(manifest, file)
            tracked_run.log_data(run, "photos", "0" * 32, file)


def _fail(config: RunConfig, manifest_file: Path, folder: Path) -> None:
    with tracked_run.owned_run(config, folder / "runs", {}) as run:
        tracked_run.log_data(run, "photos", "0" * 32, manifest_file)
        _ = 1 / 0


@pytest.mark.usefixtures("own_store")
def test_the_last_finished_training_gives_the_manifest(tmp_path: Path) -> None:
    """Failed runs, runs without a manifest and evaluations do not count; the newest does."""
    assert manifest_of_last_run("photos") is None
    config = RunConfig(name="photos")
    _finish(config, _manifest([(1, "a")]), tmp_path)
    first = manifest_of_last_run("photos")
    assert first is not None
    assert len(first) == 1
    _finish(config, _manifest([(1, "a"), (2, "b")]), tmp_path)
    _finish(config, None, tmp_path)
    file = tmp_path / "other.parquet"
    manifests.save(_manifest([(3, "a")] * 3), file)
    with pytest.raises(ZeroDivisionError):
        _fail(config, file, tmp_path)
    evaluation = tracked_run.NewRun("photos", "other", "patchline evaluate", {}, {})
    with tracked_run.open_run(evaluation, tmp_path / "runs") as run:
        tracked_run.log_data(run, "photos", "0" * 32, file)
    found = manifest_of_last_run("photos")
    assert found is not None
    assert list(found["label"]) == ["a", "b"]
    assert manifest_of_last_run("other") is None


@pytest.mark.usefixtures("own_store")
def test_the_registered_final_fit_of_a_search_is_a_training(tmp_path: Path) -> None:
    """Otherwise a watch would train again on the same images; the search itself is none."""

    def finish(command: str, images: Images) -> None:
        opened = tracked_run.NewRun("photos", "any", command, {}, {})
        with tracked_run.open_run(opened, tmp_path / "runs") as run:
            file = tmp_path / f"{run.run_id}.parquet"
            manifests.save(_manifest(images), file)
            tracked_run.log_data(run, "photos", "0" * 32, file)

    finish("patchline sweep", [(1, "a")])
    assert manifest_of_last_run("photos") is None
    finish("patchline sweep (final fit)", [(1, "a"), (2, "b")])
    found = manifest_of_last_run("photos")
    assert found is not None
    assert len(found) == 2
    _finish(RunConfig(name="photos"), _manifest([(3, "a")]), tmp_path)
    found = manifest_of_last_run("photos")
    assert found is not None
    assert len(found) == 1


def test_new_images_of_sets_are_counted_by_label() -> None:
    """An image counts for each of its labels, and another set is relabelled."""
    table = pd.DataFrame(
        {
            "path": ["1", "2", "3"],
            "label": [encoded(each) for each in (["a"], ["a", "b"], [])],
            "sha256": [f"{number:064x}" for number in range(3)],
            "pixels": [f"{number:032x}" for number in range(3)],
            "status": "ok",
        }
    )
    now = with_task(table, MULTI_LABEL)
    before = now.iloc[:1].assign(label=encoded(["b"]))
    result = compare(before, now)
    assert result.new_by_class == {"a": 1, "b": 1}
    assert "| label | new images |" in result.markdown("pets", "")
    assert (result.new, result.relabelled) == (2, 1)
