"""A search after an earlier one: the same result, and only new images are compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.data.near_duplicates.search import near_duplicates
from patchline.pipeline.data.near_duplicates.search_memory import SearchMemory
from patchline.pipeline.data.near_duplicates.thumbnails import Thumbnails
from tests.pipeline.data.near_duplicates.test_search import thumbnails_of
from tests.pipeline.inspection.test_inspecting import scene

SIDE = 32


@pytest.fixture(scope="module")
def thumbnails() -> Thumbnails:
    """Return thirty different images, then a mirrored, a cropped and a smaller one of the first."""
    images = [scene(number, SIDE) for number in range(30)]
    images.append(images[0].transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    images.append(images[1].crop((3, 3, 29, 29)).resize((SIDE, SIDE)))
    images.append(images[2].resize((24, 24)))
    return thumbnails_of(images)


def groups(
    thumbnails: Thumbnails, places: list[int], memory: SearchMemory | None = None
) -> list[set[int]]:
    """Return the groups among some of the images."""
    digests = [f"{place:032x}" for place in places]
    rows = pd.DataFrame({"sha256": digests, "pixels": digests, "width": SIDE, "height": SIDE})
    chosen = thumbnails.take(np.array(places))
    numbers = pd.Series(near_duplicates(chosen, rows, memory=memory), index=places)
    return sorted(
        (set(group.index) for _, group in numbers.groupby(numbers) if len(group) > 1), key=min
    )


ALL = [{0, 30}, {1, 31}, {2, 32}]


def test_new_images_are_compared_in_both_directions(thumbnails: Thumbnails, tmp_path: Path) -> None:
    """New originals of old crops, new crops of old originals, and new ones among themselves."""
    everything = list(range(33))
    assert groups(thumbnails, everything) == ALL
    for number, held_back in enumerate(([0, 31, 32], [30, 1, 2, 9], [])):
        memory = SearchMemory(tmp_path / str(number), tmp_path)
        groups(thumbnails, [place for place in everything if place not in held_back], memory)
        assert groups(thumbnails, everything[::-1], memory) == ALL


def test_known_images_are_not_compared_again(thumbnails: Thumbnails, tmp_path: Path) -> None:
    """Pairs of an earlier search are remembered, also if others are new; gone images are not."""
    memory = SearchMemory(tmp_path / "data", tmp_path)
    most = [place for place in range(33) if place not in (2, 32)]
    groups(thumbnails, most, memory)
    noise = np.random.default_rng(0).integers(0, 256, thumbnails.luma_NHW.shape, np.uint8)
    noise[[2, 32]] = thumbnails.luma_NHW[[2, 32]]
    unlike = Thumbnails(noise, thumbnails.chroma_NHWC)
    assert groups(unlike, list(range(33))) == [{2, 32}]
    assert groups(unlike, list(range(33)), memory) == ALL
    assert groups(unlike, list(range(31)), memory) == [{0, 30}]


@pytest.mark.parametrize("case", ["damaged", "fresh", "mostly new"])
def test_all_images_are_compared_if_there_is_nothing_to_trust(
    thumbnails: Thumbnails, tmp_path: Path, case: str
) -> None:
    """A damaged memory, one of few of the images, and a fresh run: the search covers everything."""
    memory = SearchMemory(tmp_path / "data", tmp_path)
    groups(thumbnails, [30, 5, 31] if case == "mostly new" else list(range(31)), memory)
    if case == "damaged":
        memory.file.write_bytes(b"PK" + bytes(100))
    elif case == "fresh":
        memory = SearchMemory(tmp_path / "data", tmp_path, fresh=True)
    unlike = Thumbnails(thumbnails.luma_NHW.copy(), thumbnails.chroma_NHWC)
    unlike.luma_NHW[30] = np.random.default_rng(0).integers(0, 256, (24, 24), np.uint8)
    assert groups(unlike, list(range(33)), memory) == ALL[1:]
    remembered = SearchMemory(tmp_path / "data", tmp_path)
    assert groups(thumbnails, list(range(33)), remembered) == ALL[1:]
