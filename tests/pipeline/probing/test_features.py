"""Features are those of a plain loop, are computed once, and survive a kill and damage."""

from __future__ import annotations

import dataclasses
import multiprocessing
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from patchline.pipeline.errors import ConfigError, StorageError
from patchline.pipeline.models.inference import normalised
from patchline.pipeline.probing import features, shared_batches
from patchline.pipeline.probing.features import (
    FeatureStore,
    seconds_per_image,
    suitable_batch_size,
)
from patchline.pipeline.probing.linear_head import linear_head
from patchline.plugin_api import ImageSpec
from tests.patience import patient, until
from tests.pipeline.models.late_transfers import LateTransfers
from tests.pipeline.probing.tiny_models import MODELS, image_spec, stored_images, tiny_model
from tests.small_disks import small_disk

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

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        if len(images_BCHW) > self.most:
            raise torch.OutOfMemoryError
        self.images += len(images_BCHW)
        time.sleep(self.pause_seconds)
        logits_BK: torch.Tensor = self.head(self.hidden(images_BCHW.flatten(1)).relu())
        return logits_BK


def store_of(folder: Path, model: Counted, rows: Any = ROWS) -> FeatureStore:
    """Return a store in which each batch is a piece."""
    return FeatureStore(
        *(model, model.head, stored_images(30, 8), rows, image_spec(8), folder, CPU),
        precision="float32",
        batch_size=BATCH,
        piece_seconds=0.0,
    )


def plain_loop(
    model: nn.Module, head: nn.Module, images: Any, image: ImageSpec, precision: str
) -> Any:
    """Return what the head gets, in one batch."""
    kept: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    model.eval()
    enabled = precision == "bfloat16"
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        model(normalised(torch.from_numpy(images), image))
    hook.remove()
    return kept[0].float().numpy()


@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "float32") for name in MODELS), ("vit", "bfloat16")]
)
def test_equal_to_a_plain_loop(tmp_path: Path, name: str, precision: str) -> None:
    """The head's input for each row, in the order of the rows; the model's mode is restored."""
    model, image, _ = tiny_model(name)
    model.train()
    images, seen = stored_images(30, image.height), list[tuple[int, int]]()
    head = linear_head(model, 5, image)
    store = FeatureStore(model, head, images, ROWS, image, tmp_path, CPU, precision, batch_size=8)
    features_ND = store.features(lambda done, of: seen.append((done, of)))
    assert model.training
    assert isinstance(features_ND, np.memmap)
    assert (features_ND.dtype, features_ND.shape) == (np.float32, (IMAGES, head.in_features))
    expected_ND = plain_loop(model, head, images[ROWS], image, precision)
    scale = np.abs(expected_ND).max()
    tolerance = 1e-5 if precision == "float32" else 0.02
    np.testing.assert_allclose(features_ND, expected_ND, atol=tolerance * scale)
    assert seen == [(8, IMAGES), (16, IMAGES), (IMAGES, IMAGES)]


def test_images_are_read_while_the_device_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their features are whole when they are stored, divided or beside stored ones, too."""
    expected_ND = store_of(tmp_path / "plain", Counted()).features()
    monkeypatch.setattr(features, "Transfers", LateTransfers)
    late = dataclasses.replace(store_of(tmp_path / "late", Counted()), piece_seconds=60.0)
    np.testing.assert_array_equal(late.features(), expected_ND)
    assert LateTransfers.most_unfinished == -(-IMAGES // BATCH)
    divided = store_of(tmp_path / "divided", Counted(most=3))
    np.testing.assert_allclose(divided.features(), expected_ND, rtol=1e-5, atol=1e-6)
    known = dataclasses.replace(late, contents=tuple(map(str, ROWS)), network="same")
    few = dataclasses.replace(known, rows=ROWS[::2], contents=known.contents[::2])
    dataclasses.replace(few, folder=tmp_path / "all" / "few").features()
    both = dataclasses.replace(known, folder=tmp_path / "all" / "both")
    np.testing.assert_allclose(both.features(), expected_ND, rtol=1e-5, atol=1e-6)


def test_features_are_computed_once(tmp_path: Path) -> None:
    """A second call reads them; other rows, or the same in another order, are others."""
    model = Counted()
    store = store_of(tmp_path, model)
    assert store.remaining() == IMAGES
    first_ND, seen = store.features(), list[tuple[int, int]]()
    assert model.images == IMAGES
    assert store.remaining() == 0
    again_ND = store_of(tmp_path, model).features(lambda done, of: seen.append((done, of)))
    assert model.images == IMAGES
    assert seen == [(IMAGES, IMAGES)]
    assert np.array_equal(first_ND, again_ND)
    reverse_ND = store_of(tmp_path, model, ROWS[::-1]).features()
    np.testing.assert_allclose(reverse_ND[::-1], first_ND, atol=1e-5)
    assert model.images == 2 * IMAGES
    for changed in ({"batch_size": 5}, {"precision": "bfloat16"}):
        assert dataclasses.replace(store, **changed).remaining() == IMAGES


_KILLED = """
import sys
from pathlib import Path
from tests.pipeline.probing.test_features import Counted, store_of

store_of(Path(sys.argv[1]), Counted(pause_seconds=0.2)).features()
"""


def test_a_killed_computation_is_resumed(tmp_path: Path) -> None:
    """After SIGKILL of a real process only the missing pieces are computed, with the same bits."""
    process = subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path / "killed")])
    model = Counted()
    store = store_of(tmp_path / "killed", model)
    try:
        until(lambda: store.remaining() <= IMAGES - 2 * BATCH, "no piece was finished", pause=0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    remaining, seen = store.remaining(), list[int]()
    assert 0 < remaining < IMAGES
    features_ND = store.features(lambda done, _: seen.append(done))
    assert model.images == remaining
    assert seen[0] == IMAGES - remaining
    whole_ND = store_of(tmp_path / "whole", Counted()).features()
    assert features_ND.tobytes() == whole_ND.tobytes()


def _compute(folder: Path, start: Any, counts: Any) -> None:
    model = Counted(pause_seconds=0.02)
    start.wait()
    store_of(folder, model).features()
    counts.put(model.images)


def test_two_processes_share_the_work_of_one(tmp_path: Path) -> None:
    """The second waits for the first, and computes nothing."""
    context = multiprocessing.get_context("fork")
    start, counts = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_compute, args=(tmp_path, start, counts)) for _ in range(2)]
    for process in processes:
        process.start()
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
        plain = store_of(tmp_path / "features" / folder, model, np.asarray(rows))
        contents = tuple(f"image {row}" for row in rows)
        return dataclasses.replace(plain, contents=contents, network=network)

    first_ND = store("first", range(20)).features()
    rows, seen = [25, *range(3, 20), 26, 27], list[int]()
    second = store("second", rows)
    assert second.remaining() == 3
    second_ND = second.features(lambda done, _: seen.append(done))
    assert model.images == 20 + 3
    assert seen[-1] == len(rows)
    assert np.array_equal(second_ND[1:18], first_ND[3:])
    alone_ND = store_of(tmp_path / "alone" / "x", Counted(), np.asarray(rows)).features()
    np.testing.assert_allclose(second_ND, alone_ND, atol=1e-5)
    assert store("other", rows, network="other").remaining() == len(rows)
    shutil.rmtree(second.folder)
    [file] = (tmp_path / "features" / "first").glob("*.npy")
    content = bytearray(file.read_bytes())
    content[128] ^= 4
    file.write_bytes(content)
    assert store("third", rows[1:5]).remaining() == 1  # image 3 was in the damaged piece
    assert store("third", range(20)).remaining() == BATCH


def test_a_batch_is_divided_if_memory_is_short(tmp_path: Path) -> None:
    """The features are the same; a model that cannot compute one image is an error."""
    found_ND = store_of(tmp_path / "short", Counted(most=1)).features()
    expected_ND = store_of(tmp_path / "enough", Counted()).features()
    np.testing.assert_allclose(found_ND, expected_ND, atol=1e-5)
    with pytest.raises(torch.OutOfMemoryError):
        store_of(tmp_path / "none", Counted(most=0)).features()


def test_a_full_disk_is_an_error_before_the_first_image(tmp_path: Path) -> None:
    """The space for all features is reserved."""
    model, rows = Counted(), np.zeros(30_000, np.int64)
    with (
        small_disk(tmp_path / "disk", 1) as disk,
        pytest.raises(StorageError, match="There is no space left"),
    ):
        store_of(disk / "features", model, rows).features()
    assert model.images == 0


def test_no_rows_give_no_features(tmp_path: Path) -> None:
    """A split may be empty."""
    store = store_of(tmp_path, Counted(), ROWS[:0])
    assert store.remaining() == 0
    assert store.features().shape == (0, 16)
    model, image = Counted(), image_spec(8)
    assert seconds_per_image(model, store.images, store.rows, image, CPU, "float32") == 0.0


def test_a_head_of_tokens_is_an_error(tmp_path: Path) -> None:
    """A layer that is applied to each token gets no vector per image."""
    model = nn.Sequential(nn.Flatten(2), nn.Linear(64, 5), nn.Flatten(1))
    head = model[1]
    assert isinstance(head, nn.Linear)
    with pytest.raises(ConfigError, match=r"\(4, 3, 64\)\] for 4 images, but a linear probe needs"):
        FeatureStore(
            *(model, head, stored_images(4, 8), np.arange(4), image_spec(8), tmp_path, CPU),
            precision="float32",
            batch_size=4,
        ).features()


def test_the_duration_is_measured_on_few_images() -> None:
    """A slow model sees three small batches, and the pause of each counts."""
    model, images = Counted(pause_seconds=0.3), stored_images(30, 8)
    seconds = seconds_per_image(model, images, ROWS, image_spec(8), CPU, "float32")
    assert model.images == 3 * 4
    assert 0.3 / 4 <= seconds < 0.6 / 4 * 10
    fast = Counted(pause_seconds=0.01)
    assert seconds_per_image(fast, images, ROWS, image_spec(8), CPU, "float32") < seconds
    assert fast.images > 12  # the time of four images would be mostly that of starting a batch


def test_large_images_are_computed_in_small_batches() -> None:
    """On a CPU; there is at least one image."""
    sides = {32: 256, 224: 16, 384: 5, 2000: 1}
    assert {side: suitable_batch_size(image_spec(side), CPU) for side in sides} == sides


class Pair:
    """Two threads as a group of processes; the second counts how often it hears from the first."""

    def __init__(self, rank: int, sent: Queue[list[float]], computed: Queue[torch.Tensor]) -> None:
        self.rank, self.size, self.heard = rank, 2, 0
        self._sent, self._computed = sent, computed

    def gathered(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return the tensors of both to the first one."""
        if self.rank:
            self._computed.put(values)
            return []
        return [values, self._computed.get(timeout=patient(30))]

    def numbers_of_first(self, *numbers: float) -> list[float]:
        """Return the numbers of the first to both."""
        if not self.rank:
            self._sent.put(list(numbers))
            return list(numbers)
        self.heard += 1
        return self._sent.get(timeout=patient(30))


def test_a_group_that_waits_for_another_run_hears_from_its_first_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long the other run takes, no process of the group seems to have stopped."""
    monkeypatch.setattr(shared_batches, "_HEARD_SECONDS", 0.02)
    ends, is_computing = Event(), Event()

    def wait(*_: int) -> None:
        is_computing.set()
        ends.wait(patient(60))

    queues: tuple[Queue[list[float]], Queue[torch.Tensor]] = Queue(), Queue()
    first, second = Pair(0, *queues), Pair(1, *queues)
    with ThreadPoolExecutor(3) as pool:
        other = pool.submit(store_of(tmp_path, Counted()).features, wait)
        try:
            assert is_computing.wait(patient(30))
            both = [
                pool.submit(dataclasses.replace(store_of(tmp_path, Counted()), group=each).features)
                for each in (first, second)
            ]
            until(lambda: second.heard > 3, "the second process hears nothing", seconds=10)
            assert not any(each.done() for each in both)
        finally:
            ends.set()
        assert np.array_equal(both[0].result(), other.result())
        assert not both[1].result().size
