"""Images of several buckets are listed for a teacher on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.files.placeholders import FOLDER
from patchline.pipeline.files.workspace_folder import WORKSPACE
from patchline.pipeline.teaching.job import ImagesToTeach, TeachingJob
from patchline.pipeline.teaching.listed_images import LIST_FILE, write_list
from patchline.pipeline.workers.part_files import read_lines
from patchline.plugin_api import ImageListing, ListedImage
from tests.conftest import write_photos


@pytest.mark.parametrize(("root", "is_listed"), [("s3", True), ("s3/photos", False)])
def test_images_of_several_buckets_are_listed(
    root: str, is_listed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their absolute paths; those of one bucket need no list."""
    monkeypatch.chdir(tmp_path)
    top = WORKSPACE.resolve() / FOLDER / root
    files = sorted(write_photos(top / "x", classes=1, images=2).rglob("*.png"))
    paths = [each.relative_to(top).as_posix() for each in files]
    rows = manifests.scan(ImageListing("x", top, [ListedImage(each, "a") for each in paths]))
    rows["split"] = ["train", "test"]
    manifests.save(rows, tmp_path / "m.parquet")
    images = ImagesToTeach(manifest_file=tmp_path / "m.parquet", root=top, splits=("train",))
    job = TeachingJob(
        teacher=tmp_path, name="t", sha256="0", classes=("a",), images=(images,), views=1,
        mirrored=False, device="cpu", threads=1, workspace=WORKSPACE.resolve(),
    )  # fmt: skip
    write_list(job, tmp_path / "teaching")
    file = tmp_path / "teaching" / LIST_FILE
    assert file.exists() == is_listed
    if is_listed:
        assert list(read_lines(file)) == [[str(files[0])]]
