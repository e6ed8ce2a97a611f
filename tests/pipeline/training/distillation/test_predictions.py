"""The predictions of a teacher: its own preprocessing, its views, where, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from patchline.pipeline.data.manifests.scanning import scan
from patchline.pipeline.data.store.prepared_store import StoreSpec, open_images
from patchline.pipeline.data.store.prepared_store import prepare as prepare_store
from patchline.pipeline.errors import DataError
from patchline.pipeline.models.inference import predict_logits
from patchline.pipeline.models.probing import stored_rows
from patchline.pipeline.training.distillation.job import (
    LIST_FILE,
    ImagesToTeach,
    TeachingJob,
    launcher_for,
    write_list,
)
from patchline.pipeline.training.distillation.predictions import (
    DecodedImages,
    ImageToTeach,
    TeacherOutputs,
)
from patchline.pipeline.workers import worker_start
from patchline.pipeline.workers.worker_parts import read_lines
from patchline.pipeline.workspace.files.placeholders import FOLDER
from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE
from patchline.plugin_api import ImageListing, ImageSpec, ListedImage
from tests.conftest import write_photos
from tests.pipeline.workers.wide_launcher import Wide

IMAGE = ImageSpec(
    channels=3, height=12, width=12, mean=(0.2, 0.3, 0.4), std=(0.5, 0.6, 0.7), resize="squash"
)
COUNT = 30


class _Stop(Exception):  # noqa: N818 - stands for a kill
    pass


class Linear(nn.Module):
    """A linear classifier of 5 classes."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(5, 3 * 12 * 12, generator=generator))

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        return images_BCHW.flatten(1) @ self.weight.T


@pytest.fixture
def outputs(tmp_path: Path) -> TeacherOutputs:
    """Return a teacher, and photos larger than it takes."""
    root = write_photos(tmp_path / "photos", images=COUNT // 3)
    rows = _rows(root)
    files = zip(rows["path"], rows["sha256"], strict=True)
    return TeacherOutputs.of(
        Linear(),
        DecodedImages([ImageToTeach(root, path, sha256) for path, sha256 in files], IMAGE),
        tmp_path / ".patchline",
        columns=(3, 0),
        mirrored=True,
        weights="0" * 64,
    )


def _rows(root: Path) -> Any:
    paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
    listing = ImageListing("photos", root, [ListedImage(path, "a") for path in paths])
    return scan(listing)


def stored(outputs: TeacherOutputs) -> Any:
    """Compute, and return the logits (M, V, K)."""
    return np.load(outputs.compute()).reshape(
        len(outputs.images), outputs.views, len(outputs.columns)
    )


def test_a_teacher_sees_images_as_its_package_would(
    outputs: TeacherOutputs, tmp_path: Path
) -> None:
    """In its own size, squeezed and normalised as it was trained; and mirrored."""
    root = tmp_path / "photos"
    store, _ = prepare_store(_rows(root), root, StoreSpec(3, 12, 12, "squash"), tmp_path / "stores")
    images, numbers = np.asarray(open_images(store)), np.arange(COUNT)
    logits_MVK = stored(outputs)
    for view, shown in enumerate((images, np.ascontiguousarray(images[:, :, ::-1]))):
        expected = predict_logits(outputs.model, shown, numbers, IMAGE, device=outputs.device)
        assert np.allclose(logits_MVK[:, view], expected[:, [3, 0]], atol=1e-4)


def test_an_interrupted_computation_resumes_to_the_same_predictions(
    outputs: TeacherOutputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that were stored stay; the rest is computed."""
    small = replace(outputs, batch_size=4)
    whole = stored(replace(small, folder=outputs.folder.parents[1] / "other" / "x"))
    monkeypatch.setattr(stored_rows, "PIECE_SECONDS", 0.0)

    def kill(done: int, *_: float) -> None:
        if done >= 12:
            raise _Stop

    with pytest.raises(_Stop):
        small.compute(kill)
    reports = list[int]()
    file = small.compute(lambda done, _: reports.append(done))
    assert (reports[0], reports[-1]) == (8, COUNT)
    assert np.array_equal(np.load(file).reshape(whole.shape), whole)


def test_an_image_that_has_changed_since_is_refused(
    outputs: TeacherOutputs, tmp_path: Path
) -> None:
    """Its label would be that of another picture."""
    one, other, *_ = sorted((tmp_path / "photos").rglob("*.png"))
    one.write_bytes(other.read_bytes())
    with pytest.raises(DataError, match="changed while it was being read"):
        outputs.compute()


def test_no_mirror_image_is_predicted_where_it_shows_something_else(
    outputs: TeacherOutputs,
) -> None:
    """The image itself is the only view."""
    plain = replace(outputs, mirrored=False)
    alone_MVK = stored(replace(plain, folder=outputs.folder.parent / "alone"))
    assert np.array_equal(alone_MVK, stored(outputs)[:, :1])


def job_of(root: Path, folder: Path) -> TeachingJob:
    """Return the job to predict the first of two images."""
    rows = _rows(root)
    rows["split"] = ["train", "test"]
    rows.to_parquet(folder / "m.parquet")
    images = ImagesToTeach(manifest_file=folder / "m.parquet", root=root, splits=("train",))
    return TeachingJob(
        teacher=folder, name="t", sha256="0", classes=("a",), images=(images,),
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
    with worker_start.use_launcher("wide", lambda: wide):
        for wide.is_far in (False, True):
            with launcher_for(job):
                assert (worker_start.current_launcher() is wide) != wide.is_far
        with pytest.raises(DataError, match="Unpack the data into a folder"):
            launcher_for(job.model_copy(update={"device": "cuda"}))
