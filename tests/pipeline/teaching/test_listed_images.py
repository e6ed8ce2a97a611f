"""Which images another machine gets for a teacher, and which it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.errors import DataError
from patchline.pipeline.files.placeholders import FOLDER
from patchline.pipeline.files.workspace_folder import WORKSPACE
from patchline.pipeline.teaching.job import ImagesToTeach, TeachingJob
from patchline.pipeline.teaching.listed_images import LIST_FILE, launcher_for, write_list
from patchline.pipeline.workers import active_launcher
from patchline.pipeline.workers.part_files import read_lines
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import write_photos
from tests.pipeline.workers.wide_launcher import Wide


def job_of(root: Path, folder: Path) -> TeachingJob:
    """Return the job to predict the first of two images."""
    paths = sorted(each.relative_to(root).as_posix() for each in root.rglob("*.png"))
    rows = manifests.scan(ImageListing("x", root, [ListedImage(each, "a") for each in paths]))
    rows["split"] = ["train", "test"]
    manifests.save(rows, folder / "m.parquet")
    images = ImagesToTeach(manifest_file=folder / "m.parquet", root=root, splits=("train",))
    return TeachingJob(
        teacher=folder, name="t", sha256="0", classes=("a",), images=(images,), views=1,
        mirrored=False, device="cpu", threads=1, workspace=WORKSPACE.resolve(),
    )  # fmt: skip


@pytest.mark.parametrize(("root", "is_listed"), [("s3", True), ("s3/photos", False)])
def test_images_of_several_buckets_are_listed(
    root: str, is_listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their absolute paths; those of one bucket need no list."""
    monkeypatch.chdir(tmp_path)
    top = WORKSPACE.resolve() / FOLDER / root
    files = sorted(write_photos(top / "x", classes=1, images=2).rglob("*.png"))
    job = job_of(top, tmp_path)
    write_list(job, tmp_path / "teaching")
    file = tmp_path / "teaching" / LIST_FILE
    assert file.exists() == is_listed
    if is_listed:
        assert list(read_lines(file)) == [[str(files[0])]]


def test_a_teacher_predicts_where_its_images_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On this machine what only this one can read; if that needs a GPU elsewhere, it is refused."""
    monkeypatch.chdir(tmp_path)
    job = job_of(write_photos(WORKSPACE / "sources/archive/x", classes=1, images=2), tmp_path)
    wide = Wide()
    with active_launcher.using("wide", lambda: wide):
        for wide.is_far in (False, True):
            with launcher_for(job):
                assert (active_launcher.current() is wide) != wide.is_far
        with pytest.raises(DataError, match="Unpack the data into a folder"):
            launcher_for(job.model_copy(update={"device": "cuda"}))
