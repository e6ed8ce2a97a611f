"""The search for near duplicates: planted ones are found, others are not, known ones stay known."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.near_duplicates import comparing_worker, vector_search
from patchline.pipeline.data.near_duplicates.grouping import with_near_groups
from patchline.pipeline.data.near_duplicates.matching import SEARCHES
from patchline.pipeline.data.near_duplicates.search import (
    ComparedPictures,
    near_duplicates,
)
from patchline.pipeline.data.near_duplicates.search_memory import SearchMemory
from patchline.pipeline.data.near_duplicates.thumbnails import ThumbnailCollector, Thumbnails
from patchline.pipeline.data.near_duplicates.vector_search import VectorIndex
from patchline.pipeline.workers import worker_start
from tests.pipeline.evaluation.inspection.test_inspecting import scene
from tests.pipeline.workers.wide_launcher import Wide

IMAGES, SIDE = 40, 32


def pictures() -> list[Image.Image]:
    """Return forty different images, changed copies of the first six, and one without details."""
    images = [scene(number, SIDE) for number in range(IMAGES)]
    packed = io.BytesIO()
    images[0].save(packed, "JPEG", quality=30)
    return [
        *images,
        Image.open(packed),
        images[1].transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        images[2].resize((24, 24)).resize((SIDE, SIDE)),
        images[3].crop((0, 6, 26, 32)),
        images[4].crop((3, 3, 29, 29)).resize((SIDE, SIDE)),
        images[5].crop((2, 1, 31, 30)),
        Image.new("RGB", (SIDE, SIDE), (90, 90, 90)),
    ]


def thumbnails_of(images: list[Image.Image]) -> Thumbnails:
    """Return the thumbnails of images, which are called by their numbers."""
    collector = ThumbnailCollector()
    for number, image in enumerate(images):
        collector.add(str(number), b"", np.asarray(image.convert("RGB")))
    return collector.of(pd.Series([str(number) for number in range(len(images))]))


@pytest.fixture(scope="module")
def thumbnails() -> Thumbnails:
    """Return thirty different images, then a mirrored, a cropped and a smaller one of the first."""
    places = [1, 4, 2, 0, 3, *range(5, 30), IMAGES + 1, IMAGES + 4, IMAGES + 2]
    return thumbnails_of(pictures()).take(np.array(places))


def groups(
    thumbnails: Thumbnails,
    places: list[int],
    memory: SearchMemory | None = None,
    side: int = SIDE,
) -> list[set[int]]:
    """Return the groups among some of the images."""
    digests = [f"{place:032x}" for place in places]
    rows = pd.DataFrame({"sha256": digests, "pixels": digests, "width": side, "height": side})
    chosen = thumbnails.take(np.array(places))
    numbers = pd.Series(near_duplicates(chosen, rows, memory=memory), index=places)
    return sorted(
        (set(group.index) for _, group in numbers.groupby(numbers) if len(group) > 1), key=min
    )


def test_changed_copies_are_found_and_nothing_else() -> None:
    """Compressed, mirrored, smaller and cropped copies among forty different images."""
    found = groups(thumbnails_of(pictures()), [*range(IMAGES + 7)])
    assert found == [{place, IMAGES + place} for place in range(6)]


def test_workers_find_what_one_process_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each looks up some of the views, here of new images."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing_worker, "FEWEST_IMAGES_OF_PART", 20)
    thumbnails, new = thumbnails_of(pictures()), np.arange(IMAGES, IMAGES + 7)
    alone = comparing_worker.find_matching_pairs(thumbnails, new=new)
    wide, done = Wide(), list[int]()
    with worker_start.use_launcher("wide", lambda: wide):
        divided = comparing_worker.find_matching_pairs(
            thumbnails, lambda *at: done.append(at[1]), new
        )
    assert (len(wide.parts), done[-1]) == (2, len(SEARCHES))
    assert alone.shape[1] >= 6
    assert {*zip(*divided.tolist(), strict=True)} == {*zip(*alone.tolist(), strict=True)}


@pytest.mark.parametrize(("levels", "branches"), [(1, 1_024), (2, 16), (3, 8)])
def test_search_in_cells_finds_what_comparing_all_finds(
    levels: int, branches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells, and levels of regions, hide few of the near ones; a vector never finds itself."""
    monkeypatch.setattr(vector_search, "_UNDIVIDED", 1_024 if levels == 1 else 16)
    monkeypatch.setattr(vector_search, "_BRANCHES", branches)
    monkeypatch.setattr(vector_search, "_REGION_PROBES", 6)
    generator = np.random.default_rng(0)
    vectors = np.tile(generator.normal(size=(3_000, 55)), (2, 1)).astype(np.float32)
    vectors[3_000:] += generator.normal(0, 0.3, (3_000, 55))
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

    digits = (load_digits().images[:300] * 15).astype(np.uint8)
    images = [Image.fromarray(digit) for digit in digits]
    assert groups(thumbnails_of(images), [*range(300)], side=8) == []


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
    groups(thumbnails, [place for place in range(33) if place not in (2, 32)], memory)
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


def test_crops_and_mirror_images_stay_in_one_split() -> None:
    """Each picture's versions are in one split, and a version that arrives later joins them."""

    def save(image: Image.Image, number: int, name: str) -> None:
        file = Path("photos") / "ab"[number % 2] / f"{number:02d}_{name}"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)

    def rows() -> pd.DataFrame:
        data = {"path": "photos", "group_near_duplicates": True}
        found = manifests.load(ingest(validate_config({"data": data}), Path("work")).manifest_file)
        return found.assign(number=found["path"].str[2:4].astype(int))

    for number in range(30):
        save(scene(number, 48), number, "whole.png")
    for number in range(8):
        save(scene(number, 48).crop((3, 3, 45, 45)).resize((48, 48)), number, "crop.png")
    before = rows().groupby("number")["split"].agg(set)
    assert all(len(splits) == 1 for splits in before)
    for number in range(8):
        save(scene(number, 48).transpose(Image.Transpose.FLIP_LEFT_RIGHT), number, "mirror.jpg")
    found = rows()
    pd.testing.assert_series_equal(found.groupby("number")["split"].agg(set), before)
    versions = found[found["number"] < 8].groupby("number")["group"].agg(set)
    assert all(len(names) == 1 and "near " in min(names) for names in versions)
    assert (found.loc[found["number"] >= 8, "group"] == "").all()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["bert", "anna", "bert", ""], ["anna", "anna", "anna", ""]),  # 0 and 1 are near duplicates
        (["", "", "anna", "anna"], ["near 000000000000", "near 000000000000", "anna", "anna"]),
    ],
)
def test_groups_that_near_duplicates_connect_become_one(
    given: list[str], expected: list[str]
) -> None:
    """A name that the data gives stays; a group without one is named by a digest."""
    first, *others = (scene(number, 48) for number in (1, 2, 3))
    thumbnails = ThumbnailCollector()
    for number, picture in enumerate([first, first.resize((40, 40)), *others]):
        thumbnails.add(str(number), b"", np.asarray(picture))
    digests = [f"{number:064x}" for number in range(4)]
    columns = {"status": "ok", "group": given, "width": 48, "height": 48}
    manifest = pd.DataFrame({"path": list("0123"), "sha256": digests, "pixels": digests, **columns})
    grouped, note = with_near_groups(manifest, thumbnails)
    assert grouped["group"].tolist() == expected
    assert note == "2 images are near duplicates of others, kept together in 1 group"


def burst(seed: int, count: int, side: int = 32, channels: int = 3) -> list[np.ndarray]:
    """Return pictures of one scene, which differ in the noise of a camera."""
    generator = np.random.default_rng(seed)
    blocks = generator.uniform(30, 220, (4, 4, channels))
    scene = np.kron(blocks, np.ones((side // 4, side // 4, 1)))
    noise = generator.normal(0, 3, (count, *scene.shape))
    return list(np.clip(scene + noise, 0, 255).astype(np.uint8))


def compared(keys: list[str], shots: list[np.ndarray], side: int = 32) -> ComparedPictures:
    """Return pictures that can be compared."""
    pictures = ComparedPictures()
    for key, picture in zip(keys, shots, strict=True):
        pictures.add(key, picture, (side, side))
    return pictures


@pytest.mark.parametrize("channels", [1, 5])
def test_a_burst_is_one_unit_whatever_its_bands(channels: int) -> None:
    """The images of six scenes, four of each, are six; without a picture, each is one."""
    keys = [f"{scene}-{shot}" for scene in range(6) for shot in "abcd"]
    shots = [each for scene in range(6) for each in burst(scene, 4, channels=channels)]
    pictures = compared(keys, shots)
    units = pictures.units([*keys, "x", "y"], [""] * 26)
    assert [len(set(units[4 * scene : 4 * scene + 4])) for scene in range(6)] == [1] * 6
    assert len(set(units.tolist())) == 8
    assert (pictures.lacking([*keys, "x", "y"]), pictures.too_small(keys)) == (2, 0)


def test_a_group_joins_images_and_the_units_that_they_are_in() -> None:
    """Two scenes of one patient are one unit, with the near duplicates of either."""
    keys, shots = list("abcdef"), [each for scene in range(3) for each in burst(scene, 2)]
    units = compared(keys, shots).units(keys, ["p", "", "p", "", "", ""])
    assert (len(set(units[:4])), len(set(units.tolist()))) == (1, 2)


def test_small_images_are_not_compared_but_exact_copies_are_known() -> None:
    """Different digits of 8 pixels look alike."""
    shots, keys = burst(0, 3, side=8), list("abcd")
    pictures = compared(keys, [*shots, shots[0]], 8)
    units = pictures.units(keys, [""] * 4)
    assert (len(set(units.tolist())), units[0], pictures.too_small(keys)) == (3, units[3], 4)
