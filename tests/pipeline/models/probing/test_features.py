"""Features are those of a plain loop, are computed once, and survive a kill and damage."""

from __future__ import annotations

import dataclasses
import multiprocessing
import shutil
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.probing import stored_rows
from patchline.pipeline.models.probing.features import (
    FeatureStore,
    suitable_batch_size,
)
from patchline.pipeline.models.probing.linear_head import linear_head
from tests.patience import patient, until
from tests.pipeline.models.late_transfers import LateTransfers
from tests.pipeline.models.probing.tiny_models import MODELS, image_spec, stored_images, tiny_model

CPU = torch.device("cpu")
IMAGES, BATCH = 22, 4
ROWS = np.random.default_rng(1).permutation(30)[:IMAGES]


class Counted(nn.Module):
    """A model that counts its images, with an optional pause before each batch."""

    def __init__(self, pause_seconds: float = 0.0, most: int = 1000) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(192, 16), nn.Linear(16, 5)
        self.images, self.pause_seconds, self.most = 0, pause_seconds, most

    def forward(self, images_BCHW: torch.Tensor) -> Any:
        if len(images_BCHW) > self.most:
            raise torch.OutOfMemoryError
        self.images += len(images_BCHW)
        time.sleep(self.pause_seconds)
        return self.head(self.hidden(images_BCHW.flatten(1)).relu())


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "PIECE_SECONDS", 0.0)


def store_of(folder: Path, model: Any, rows: Any = ROWS) -> FeatureStore:
    """Return a store in which each batch is a piece."""
    return FeatureStore(
        *(model, stored_images(30, 8), np.asarray(rows), image_spec(8), folder, CPU),
        precision="float32",
        batch_size=BATCH,
        head=model.head,
    )


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "float32") for name in MODELS), ("vit", "bfloat16")]
)
def test_equal_to_a_plain_loop(tmp_path: Path, name: str, precision: str) -> None:
    """The head's input for each row, in the order of the rows; the model's mode is restored."""
    model, image, _ = tiny_model(name)
    model.train()
    images, seen, kept = stored_images(30, image.height), list[int](), list[torch.Tensor]()
    head = linear_head(model, 5, image)
    store = FeatureStore(model, images, ROWS, image, tmp_path, CPU, precision, 8, head)
    features_ND = store.features(lambda done, _: seen.append(done))
    assert model.training
    assert features_ND.dtype == np.float32
    assert seen == [8, 16, IMAGES]
    head.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    model.eval()
    enabled = precision == "bfloat16"
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        model(normalize(torch.from_numpy(images[ROWS]), image))
    expected_ND = kept[0].float().numpy()
    tolerance = 0.02 if enabled else 1e-5
    np.testing.assert_allclose(features_ND, expected_ND, atol=tolerance * np.abs(expected_ND).max())


def test_images_are_read_while_the_device_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their features are whole when they are stored, and so are those of divided batches."""
    expected_ND = store_of(tmp_path / "plain", Counted()).features()
    monkeypatch.setattr(stored_rows, "Transfers", LateTransfers)
    with monkeypatch.context() as patch:
        patch.setattr(stored_rows, "PIECE_SECONDS", 60.0)
        late_ND = store_of(tmp_path / "late", Counted()).features()
    np.testing.assert_array_equal(late_ND, expected_ND)
    assert LateTransfers.most_unfinished == -(-IMAGES // BATCH)
    for most in (3, 1):
        divided_ND = store_of(tmp_path / f"{most}", Counted(most=most)).features()
        np.testing.assert_allclose(divided_ND, expected_ND, rtol=1e-5, atol=1e-6)
    with pytest.raises(torch.OutOfMemoryError):
        store_of(tmp_path / "none", Counted(most=0)).features()


def test_features_are_computed_once(tmp_path: Path) -> None:
    """A second call reads them; other rows, or the same in another order, are others."""
    model = Counted()
    store = store_of(tmp_path, model)
    assert store.remaining() == IMAGES
    first_ND, seen = store.features(), list[int]()
    assert (model.images, store.remaining()) == (IMAGES, 0)
    again_ND = store_of(tmp_path, model).features(lambda done, _: seen.append(done))
    assert (model.images, seen) == (IMAGES, [IMAGES])
    assert np.array_equal(first_ND, again_ND)
    reverse_ND = store_of(tmp_path, model, ROWS[::-1]).features()
    np.testing.assert_allclose(reverse_ND[::-1], first_ND, atol=1e-5)
    assert model.images == 2 * IMAGES
    for changed in ({"batch_size": 5}, {"precision": "bfloat16"}):
        assert dataclasses.replace(store, **changed).remaining() == IMAGES
    none = store_of(tmp_path, model, ROWS[:0])
    assert (none.remaining(), none.features().shape) == (0, (0, 16))


def _compute(folder: Path, pause: float, start: Any, counts: Any) -> None:
    model = Counted(pause)
    start.wait()
    store_of(folder, model).features()
    counts.put(model.images)


def _computing(folder: Path, count: int, pause: float) -> tuple[list[Any], Any]:
    """Return processes that compute the same features, and what they say they have computed."""
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    given = (folder, pause, context.Barrier(count), counts)
    processes = [context.Process(target=_compute, args=given) for _ in range(count)]
    for process in processes:
        process.start()
    return processes, counts


def test_a_killed_computation_is_resumed(tmp_path: Path) -> None:
    """After SIGKILL of a real process only the missing pieces are computed, with the same bits."""
    [process], _ = _computing(tmp_path / "killed", 1, 0.2)
    model = Counted()
    store = store_of(tmp_path / "killed", model)
    try:
        until(lambda: store.remaining() <= IMAGES - 2 * BATCH, "no piece was finished", pause=0.01)
    finally:
        process.kill()
        process.join()
    remaining, seen = store.remaining(), list[int]()
    assert 0 < remaining < IMAGES
    features_ND = store.features(lambda done, _: seen.append(done))
    assert model.images == remaining
    assert seen[0] == IMAGES - remaining
    whole_ND = store_of(tmp_path / "whole", Counted()).features()
    assert features_ND.tobytes() == whole_ND.tobytes()


def test_two_processes_share_the_work_of_one(tmp_path: Path) -> None:
    """The second waits for the first, and computes nothing."""
    processes, counts = _computing(tmp_path, 2, 0.02)
    assert sorted(counts.get(timeout=patient(120)) for _ in processes) == [0, IMAGES]
    for process in processes:
        process.join()
    model = Counted()
    whole_ND = store_of(tmp_path / "alone", Counted()).features()
    assert store_of(tmp_path, model).features().tobytes() == whole_ND.tobytes()
    assert model.images == 0


def test_features_are_kept_when_images_are_added(tmp_path: Path) -> None:
    """Those of the same network are copied, bit for bit; only new or damaged ones are computed."""
    model = Counted()

    def store(folder: str, rows: Any, network: str = "some") -> FeatureStore:
        plain = store_of(tmp_path / "features" / folder, model, rows)
        contents = tuple(f"image {row}" for row in rows)
        return dataclasses.replace(plain, contents=contents, network=network)

    first_ND = store("first", range(20)).features()
    rows = [25, *range(3, 20), 26, 27]
    second = store("second", rows)
    assert second.remaining() == 3
    second_ND = second.features()
    assert model.images == 20 + 3
    assert np.array_equal(second_ND[1:18], first_ND[3:])
    assert store("other", rows, network="other").remaining() == len(rows)
    shutil.rmtree(second.folder)
    [file] = (tmp_path / "features" / "first").glob("*.npy")
    content = bytearray(file.read_bytes())
    content[128] ^= 4
    file.write_bytes(content)
    assert store("third", rows[1:5]).remaining() == 1  # image 3 was in the damaged piece
    assert store("third", range(20)).remaining() == BATCH


def test_a_head_of_tokens_is_an_error(tmp_path: Path) -> None:
    """A layer that is applied to each token gets no vector per image."""
    layers = {"flat": nn.Flatten(2), "head": nn.Linear(64, 5), "joined": nn.Flatten(1)}
    model = nn.Sequential(OrderedDict(layers))
    with pytest.raises(ConfigError, match=r"\(4, 3, 64\)\] for 4 images, but a linear probe needs"):
        store_of(tmp_path, model).features()


def test_large_images_are_computed_in_small_batches() -> None:
    """On a CPU; there is at least one image."""
    sides = {32: 256, 384: 5, 2000: 1}
    assert {side: suitable_batch_size(image_spec(side), CPU) for side in sides} == sides
