"""What changed between two data sets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.data.ingestion import scan
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL, SINGLE_LABEL, encoded
from patchline.pipeline.data.manifests.data_diff import Moved, Relabelled, compare
from patchline.pipeline.data.manifests.manifest import with_task
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
    labels = [encoded(each) for each in sets.values()]
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
