"""Parquet files of a folder, as data-set hubs export them, are one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.errors import DataError
from tests.conftest import write_photos
from tests.plugins.test_table_source import ingested, listed, parquet_of


@pytest.mark.parametrize("inner", ["", "data"])
def test_parquet_files_of_a_folder_are_one_table(tmp_path: Path, inner: str) -> None:
    """As data-set hubs export them: splits by the files' names, images and classes from all."""
    hub = tmp_path / "hub" / inner
    hub.mkdir(parents=True)
    for number, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "test-00000")):
        photos = write_photos(tmp_path / f"photos{number}", classes=2, images=4 + number)
        parquet_of(hub / f"{name}.parquet", photos, "struct")
    (hub / "README.md").write_text("A data set.")
    found = ingested(tmp_path / "hub", tmp_path / "work", accept=["leakage"])  # drawn alike
    assert found.name == "hub"
    assert found.counts["test"] == 12
    assert found.counts["train"] + found.counts["validation"] == 18
    assert found.class_counts == {"across": 15, "down": 15}
    assert any("splits from 'split'" in note for note in found.notes)


def test_parquet_files_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    """Other classes or columns in one of them are an error that names it."""
    hub = tmp_path / "hub"
    hub.mkdir()
    for classes in (2, 3):
        photos = write_photos(tmp_path / f"photos{classes}", classes=classes, images=2)
        parquet_of(hub / f"part-{classes}.parquet", photos, "struct")
    with pytest.raises(DataError, match=r"part-3\.parquet has other columns or classes"):
        listed(hub)
    (hub / "part-3.parquet").rename(hub / "test-3.parquet")
    (hub / "part-2.parquet").write_bytes((hub / "test-3.parquet").read_bytes())
    with pytest.raises(DataError, match=r"test-3\.parquet is named for a split, but .*part-2"):
        listed(hub)  # its test images would be trained on
    (hub / "rose").mkdir()  # class folders: then it is a folder of images
    with pytest.raises(DataError, match="is not a table"):
        listed(hub)
