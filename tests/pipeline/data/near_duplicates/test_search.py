"""The search for near duplicates: planted ones are found, different images are not."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.data.near_duplicates import search, vector_search
from patchline.pipeline.data.near_duplicates.matching import SEARCHES, Array
from patchline.pipeline.data.near_duplicates.search import near_duplicates
from patchline.pipeline.data.near_duplicates.thumbnails import Thumbnails
from patchline.pipeline.data.near_duplicates.vector_search import VectorIndex
from patchline.pipeline.inspection.measures import ImageMeasures
from patchline.pipeline.workers import active_launcher
from tests.pipeline.inspection.test_inspecting import scene
from tests.pipeline.workers.wide_launcher import Wide

Change = Callable[[Image.Image], Image.Image]
IMAGES, SIDE = 40, 32


def _jpeg(image: Image.Image) -> Image.Image:
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=30)
    return Image.open(encoded)


def _mirror(image: Image.Image) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def _rescale(image: Image.Image) -> Image.Image:
    return image.resize((24, 24)).resize((SIDE, SIDE))


def _corner(image: Image.Image) -> Image.Image:
    return image.crop((0, 6, 26, 32))


def _centre(image: Image.Image) -> Image.Image:
    return image.crop((3, 3, 29, 29)).resize((SIDE, SIDE))


def _wide_crop(image: Image.Image) -> Image.Image:
    return image.crop((2, 1, 31, 30))


def measured(images: list[Image.Image]) -> tuple[Thumbnails, pd.DataFrame]:
    """Return the thumbnails of images, and their rows of a manifest."""
    measures = ImageMeasures()
    paths = pd.Series([str(number) for number in range(len(images))])
    for path, image in zip(paths, images, strict=True):
        measures.add(path, b"", np.asarray(image.convert("RGB")))
    sizes = {
        "width": [image.width for image in images],
        "height": [image.height for image in images],
    }
    rows = pd.DataFrame({"path": paths, "sha256": paths, "pixels": paths, **sizes})
    return measures.thumbnails(paths), rows


def groups_of(images: list[Image.Image]) -> list[set[int]]:
    """Return the groups of images that are nearly the same, by their places."""
    numbers = pd.Series(near_duplicates(*measured(images)))
    return [set(group.index) for _, group in numbers.groupby(numbers) if len(group) > 1]


@pytest.mark.parametrize("change", [_jpeg, _mirror, _rescale, _corner, _centre, _wide_crop])
def test_changed_copies_are_found_and_nothing_else(change: Change) -> None:
    """Five changed copies among forty different images are five groups of two."""
    images = [scene(number, SIDE) for number in range(IMAGES)]
    copies = [change(images[place]) for place in range(5)]
    assert groups_of([*images, *copies]) == [{place, IMAGES + place} for place in range(5)]


@pytest.mark.parametrize(
    "new",
    [
        pytest.param(np.arange(IMAGES, IMAGES + 5), id="new"),
        pytest.param(None, id="all", marks=pytest.mark.slow),
    ],
)
def test_workers_find_what_one_process_finds(
    new: Array | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each looks up some of the views, of all images or of new ones; nothing of them is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(search, "FEWEST_IMAGES_OF_PART", 20)
    images = [scene(number, SIDE) for number in range(IMAGES)]
    changes = (_jpeg, _mirror, _corner, _centre, _wide_crop)
    images += [change(images[place]) for place, change in enumerate(changes)]
    thumbnails, _ = measured(images)
    alone = search._matching_pairs(thumbnails, new=new)
    wide, done = Wide(), list[int]()
    with active_launcher.using("wide", lambda: wide):
        divided = search._matching_pairs(thumbnails, lambda *at: done.append(at[1]), new)
    assert len(wide.parts) == 2
    assert done[-1] == len(SEARCHES)
    assert alone.shape[1] >= len(changes)
    assert {*zip(*divided.tolist(), strict=True)} == {*zip(*alone.tolist(), strict=True)}
    assert not list(Path(".patchline").glob(".building-*"))


def test_one_image_and_exact_copies_need_no_search() -> None:
    """A single image is nobody's duplicate."""
    assert groups_of([scene(1)]) == []


def test_blank_images_are_not_near_duplicates_of_pictures() -> None:
    """An image without details matches nothing that has some."""
    images = [scene(number, SIDE) for number in range(5)]
    assert groups_of([*images, Image.new("RGB", (SIDE, SIDE), (90, 90, 90))]) == []


@pytest.mark.parametrize(("levels", "branches"), [(1, 1_024), (2, 16), (3, 8)])
def test_search_in_cells_finds_what_comparing_all_finds(
    levels: int, branches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells, and levels of regions, hide few of the near ones; a vector never finds itself."""
    monkeypatch.setattr(vector_search, "_UNDIVIDED", 1_024 if levels == 1 else 16)
    monkeypatch.setattr(vector_search, "_BRANCHES", branches)
    monkeypatch.setattr(vector_search, "_REGION_PROBES", 6)
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(6_000, 55)).astype(np.float32)
    vectors[3_000:] = vectors[:3_000] + generator.normal(0, 0.3, (3_000, 55)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = VectorIndex(vectors)
    assert len(index._cells._levels) == levels
    rows, places = index.search(vectors, 0.85, 3)
    found = set(zip(rows.tolist(), places.tolist(), strict=True))
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, 0)
    wanted = set(zip(*(axis.tolist() for axis in np.nonzero(similar >= 0.85)), strict=True))
    assert found <= wanted
    assert len(found) >= 0.97 * len(wanted)
    assert len(wanted) > 5_000


def test_the_scanned_digits_are_different_images() -> None:
    """Of images with 8 pixels on a side nobody can tell whether they show the same."""
    from sklearn.datasets import load_digits

    digits = load_digits().images[:300] * 15
    assert groups_of([Image.fromarray(digit.astype(np.uint8)) for digit in digits]) == []


def test_the_highest_values_are_as_many_as_wanted_also_where_some_are_equal() -> None:
    """Equal values, such as those of two equal centres, make a row neither longer nor shorter."""
    values = np.random.default_rng(0).integers(0, 4, (50, 20)).astype(np.float32)
    for count in (1, 5, 19, 20, 30):
        columns = vector_search._highest(values, count)
        expected = np.sort(values, axis=1)[:, ::-1][:, :count]
        chosen = np.take_along_axis(values, columns, axis=1)
        np.testing.assert_array_equal(np.sort(chosen, axis=1)[:, ::-1], expected)
        assert all(len(set(row)) == len(row) for row in columns.tolist())
