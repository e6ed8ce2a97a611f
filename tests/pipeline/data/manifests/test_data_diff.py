"""What changed between two data sets."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingestion import scan
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, encode_labels
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.manifests.data_diff import Moved, Relabelled, compare, count_new_images
from patchline.pipeline.data.manifests.earlier_manifests import manifest_of_last_run
from patchline.pipeline.data.manifests.manifest import with_task
from patchline.pipeline.workspace.tracking import tracked_run
from patchline.pipeline.workspace.tracking.nested_runs import KEY_TAG
from tests.conftest import draw_photo, write_photos


def manifest_of(folder: Path) -> pd.DataFrame:
    """Return the manifest of a folder."""
    config = RunConfig.model_validate({"data": {"path": str(folder)}})
    return scan(config, folder.parent / "work").manifest


def test_every_change_is_named_once() -> None:
    """Added, removed, changed, moved and relabelled images are told apart."""
    before = write_photos(Path("before"), classes=2, images=6)
    after = Path("after")
    shutil.copytree(before, after)
    Image.fromarray(draw_photo(0, 77)).save(after / "across/new.png")
    shutil.copy(after / "down/000.png", after / "down/copy.png")
    (after / "across/001.png").unlink()
    Image.fromarray(draw_photo(0, 78)).save(after / "across/002.png")
    (after / "across/003.png").rename(after / "across/renamed.png")
    (after / "across/004.png").rename(after / "down/moved.png")
    Image.open(after / "across/005.png").save(after / "across/005.png", compress_level=1)
    found = compare(manifest_of(before), manifest_of(after))
    assert found.added == ("across/new.png", "down/copy.png")
    assert (found.removed, found.changed) == (("across/001.png",), ("across/002.png",))
    assert found.moved == (Moved(path="across/renamed.png", before="across/003.png"),)
    change = {"path": "down/moved.png", "before": "across/004.png"}
    assert found.relabelled == (Relabelled(**change, label="down", label_before="across"),)
    assert (found.images_before, found.images, found.unchanged) == (12, 13, 8)
    assert not found.same


def _with_sets(**sets: str) -> pd.DataFrame:
    """Return a manifest of sets of labels, with a content of its own for each path."""
    digests = [f"{number:064x}" for number in range(len(sets))]
    labels = [encode_labels(each) for each in sets.values()]
    columns = {"label": labels, "sha256": digests, "pixels": digests, "status": "ok"}
    return with_task(pd.DataFrame({"path": list(sets), **columns}), MULTI_LABEL)


def test_sets_differ_by_the_labels_that_come_and_go() -> None:
    """The order of the labels is no difference, and one label is compared as a set of one."""
    before, now = _with_sets(x="ab", y="a", z=""), _with_sets(x="ba", y="bc", z="a")
    result = compare(before, now)
    assert (result.unchanged, result.task) == (1, MULTI_LABEL)
    changes = [(each.path, each.added_labels, each.removed_labels) for each in result.relabelled]
    assert changes == [("y", ("b", "c"), ("a",)), ("z", ("a",), ())]
    single = with_task(now.assign(label=["a", "b", "a"]), SINGLE_LABEL)
    assert [each.added_labels for each in compare(single, now).relabelled] == [("b",), ("c",)]


Images = list[tuple[int, str]]
"""Content and class of each file."""


def _manifest(images: Images, **columns: Any) -> pd.DataFrame:
    paths = [f"{label}/{position}.png" for position, (_, label) in enumerate(images)]
    table = pd.DataFrame({"path": paths, "label": [label for _, label in images]}, dtype="str")
    digests = pd.Series([f"{content:064x}" for content, _ in images], dtype="str")
    return table.assign(sha256=digests, status="ok", **columns)


@settings(max_examples=15)
@given(*[st.lists(st.tuples(st.integers(0, 12), st.sampled_from("abc")), max_size=15)] * 2)
def test_new_and_removed_are_the_differences_of_the_sets_of_contents(
    before: Images, now: Images
) -> None:
    """An image is new if no file before had its content; the way back is the opposite.

    Copies and other names are no change; a first training counts every content once.
    """
    found = count_new_images(_manifest(before), _manifest(now))
    old, current = {content for content, _ in before}, {content for content, _ in now}
    assert (found.new, found.removed) == (len(current - old), len(old - current))
    assert found.images == len(current)
    back = count_new_images(_manifest(now), _manifest(before))
    assert (found.new, found.removed, found.relabelled) == (back.removed, back.new, back.relabelled)
    same = count_new_images(_manifest(now), _manifest([*now, *now[::-1]]))
    assert (same.new, same.removed, same.relabelled) == (0, 0, 0)
    first = count_new_images(None, _manifest(now))
    assert (first.first, found.first) == (True, False)
    assert (first.new, first.removed, first.relabelled) == (len(current), 0, 0)


def test_an_image_in_another_class_is_relabelled_and_not_new() -> None:
    """A file that was moved to another class folder is told apart from a new one."""
    found = count_new_images(
        _manifest([(1, "a"), (2, "b")]), _manifest([(1, "b"), (2, "b"), (3, "c")])
    )
    assert (found.new, found.relabelled, found.removed) == (1, 1, 0)
    assert (found.new_by_class, found.relabelled_examples) == ({"c": 1}, ("b/0.png",))
    assert (
        count_new_images(_manifest([(1, "a")]).assign(status="damaged"), _manifest([(1, "a")])).new
        == 1
    )


def test_the_same_pixels_in_another_file_are_not_new() -> None:
    """A re-encoded copy is not new, where the pixels are known now or in both manifests."""
    before, now = _manifest([(1, "a")]), _manifest([(1, "a"), (2, "a"), (3, "a")])
    now["pixels"] = ["p", "p", "q"]
    assert count_new_images(before, now).new == 1
    before["pixels"] = ["p"]
    found = count_new_images(before, now[1:].reset_index(drop=True))
    assert (found.new, found.removed, found.images) == (1, 0, 2)


def _finished(
    folder: Path, images: Images | None, key: str = "final 1", fails: bool = False
) -> None:
    opened = tracked_run.NewRun("photos", "any", "patchline other", {}, {KEY_TAG: key})
    with tracked_run.open_run(opened, folder / "runs") as run:
        if images:
            manifests.save(_manifest(images), folder / f"{run.run_id}.parquet")
            tracked_run.log_data(run, "photos", "0" * 32, folder / f"{run.run_id}.parquet")
        assert not fails


def _labels_of_last_run() -> str | None:
    found = manifest_of_last_run("photos")
    return None if found is None else "".join(found["label"])


@pytest.mark.usefixtures("own_store")
def test_the_last_finished_training_gives_the_manifest(tmp_path: Path) -> None:
    """Failed runs, runs without a manifest and evaluations do not count; the newest does.

    Of nested runs, those count that may make a version.
    """
    with tracked_run.open_owned_run(RunConfig(name="photos"), tmp_path / "runs", {}) as run:
        manifests.save(_manifest([(1, "x")]), tmp_path / "own.parquet")
        tracked_run.log_data(run, "photos", "0" * 32, tmp_path / "own.parquet")
    assert _labels_of_last_run() == "x"
    _finished(tmp_path, [(1, "a"), (2, "b")])
    _finished(tmp_path, [(1, "c")], "trial 1")
    _finished(tmp_path, [(1, "c")], "")
    _finished(tmp_path, None)
    with pytest.raises(AssertionError):
        _finished(tmp_path, [(3, "c")], fails=True)
    assert _labels_of_last_run() == "ab"
    assert manifest_of_last_run("other") is None


def test_new_images_of_sets_are_counted_by_label() -> None:
    """An image counts for each of its labels, and another set is relabelled."""
    table = _manifest([(1, ""), (2, ""), (3, "")])
    now = with_task(
        table.assign(label=[encode_labels("a"), encode_labels("ab"), encode_labels("")]),
        MULTI_LABEL,
    )
    result = count_new_images(now.iloc[:1].assign(label=encode_labels("b")), now)
    assert (result.new_by_class, (result.new, result.relabelled)) == ({"a": 1, "b": 1}, (2, 1))
