"""A training job on small photos that takes a second or two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from patchline.pipeline import config_files
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData, PreparedData
from patchline.pipeline.models.probing import linear_fit
from patchline.pipeline.training import checkpoint
from patchline.pipeline.training.job import TrainingJob
from patchline.pipeline.training.parts.launching import job_of
from tests.conftest import write_photos
from tests.pipeline.training.trained_jobs import FEW_PENALTIES, SETTINGS, Make, MakeIn


@pytest.fixture(scope="session")
def small_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 72 photos in 3 classes; tests must not change it."""
    return write_photos(tmp_path_factory.mktemp("small_photos") / "photos", images=24, side=16)


@pytest.fixture(scope="session")
def make_in(small_photos: Path) -> MakeIn:
    """Return the builder of small jobs in a folder; all share one manifest and one store.

    Jobs that differ in their training alone read them once.
    """
    workspace = small_photos.parent
    known: dict[str, tuple[IngestedData, PreparedData]] = {}

    def make(top: Path, name: str = "", **changes: Any) -> TrainingJob:
        settings = config_files.merge_settings(SETTINGS, {"data": {"path": str(small_photos)}})
        config = config_files.validate_config(config_files.merge_settings(settings, changes))
        teacher = config.training.teacher
        key = repr((config.data, config.model, config.augmentation, config.objective, teacher))
        if key not in known:
            data = ingestion.ingest(config, workspace)
            known[key] = data, ingestion.prepare(ingestion.resolve(config, data), data, workspace)
        data, prepared = known[key]
        config = ingestion.resolve(config, data)
        return job_of(config, data, prepared, top / name, "no run")

    return lambda top: partial(make, top)


@pytest.fixture
def make(make_in: MakeIn, tmp_path: Path) -> Make:
    """Return the builder of jobs of one test."""
    return make_in(tmp_path)


@pytest.fixture(scope="module")
def make_shared(make_in: MakeIn, tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Return the builder of jobs that tests of a module share."""
    return make_in(tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def few_penalties() -> Iterator[None]:
    """Choose the penalty of a head among few, where the search is not what a test is about."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear_fit, "REGULARIZATIONS", FEW_PENALTIES)
        yield


@pytest.fixture
def _checkpoint_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a checkpoint after each step, not only after seconds."""
    monkeypatch.setattr(checkpoint, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(checkpoint, "_SHARE", math.inf)


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    """Give torch its threads back, which a training sets for its process."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
