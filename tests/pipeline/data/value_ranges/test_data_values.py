"""A data set's values become 8 bits alike for its store, its package, and new images."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validate_config
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.data.value_ranges import range_choice
from patchline.pipeline.data.value_ranges.data_values import notes_on_fit
from patchline.pipeline.errors import ConfigError, DataError, UserError
from patchline.pipeline.evaluation.inspection.inspecting import inspect_data
from tests.conftest import draw_photo, encoded
from tests.pipeline.data.pixel_values.made_files import png_file, tiff_file, write_files

Values = np.ndarray[Any, Any]


def config_of(root: Path, **data: Any) -> RunConfig:
    return validate_config({"data": {"path": str(root), "image_size": 16, **data}})


def ingested(root: Path, **data: Any) -> IngestedData:
    return ingestion.ingest(config_of(root, **data), root.parent / "work")


def stored(root: Path, data: IngestedData, **settings: Any) -> dict[str, Values]:
    """Return the images of the prepared store, by path."""
    config = ingestion.resolve(config_of(root, **settings), data)
    prepared = ingestion.prepare(config, data, root.parent / "work")
    assert prepared.image.pixel_values == data.pixel_values
    rows = manifests.usable(manifests.load(data.manifest_file))
    return dict(zip(rows["path"], prepared_store.open_images(prepared.store)[:], strict=True))


def of_type(dtype: str, low: float, high: float) -> tuple[str, Callable[[Values], bytes]]:
    """Return the name of a file, and what writes values between two into it."""
    is_png = dtype in {"u1", "u2"}
    write: Callable[[Values], bytes] = png_file if is_png else tiff_file

    def file_of(texture: Values) -> bytes:
        if dtype != "u1":
            return write((low + texture * (high - low)).astype(dtype)[:, :, None])
        return encoded(Image.fromarray((texture * 255).astype(np.uint8)), "PNG")

    return f"{dtype}{{:02}}.{'png' if is_png else 'tif'}", file_of


@pytest.mark.parametrize(
    ("file", "note"),
    [
        (of_type("u2", 0, 4095), "16-bit values: 0 to 4,095 become 256 grey levels"),
        (of_type("i4", -1000, 0), "signed 32-bit values: "),
        (of_type("i2", -1024, 3071), "set a window such as --data.value-range -160 240"),
        (of_type("f4", 280.5, 310.2), "percentiles 0.5 and 99.5 of the pixels"),
    ],
)
def test_deep_images_keep_their_texture(
    file: tuple[str, Callable[[Values], bytes]], note: str
) -> None:
    """Whatever the type, the store's images follow the values, and the run says by which range."""
    root = write_files("deep", *file)
    data = ingested(root)
    assert any(note in each for each in data.notes), data.notes
    assert data.greyscale
    for path, image_HWC in stored(root, data).items():
        grey = image_HWC[:, :, 0].astype(float)
        assert len(np.unique(grey)) > 100
        across = grey.std(axis=0).mean() - grey.std(axis=1).mean()
        assert across > 20 if path.startswith("across") else across < -20


def test_ordinary_images_are_as_before() -> None:
    """Images of 8 bits get no range, no note, and no other pixel."""
    root = write_files("plain", *of_type("u1", 0, 255))
    data = ingested(root)
    assert data.mapping.is_plain
    assert not [note for note in data.notes if "values" in note]
    for path, image_HWC in stored(root, data).items():
        assert np.array_equal(image_HWC[:, :, 0], np.asarray(Image.open(root / path)))
    notes = ingested(root, value_range=(0, 100)).notes
    assert any("data.value_range has no effect" in note for note in notes)


def test_a_mixed_data_set_has_a_range_for_each_type() -> None:
    """Images of 8 bits beside deep ones keep their values."""
    root = Path("mixed")
    for kind in (of_type("u1", 0, 255), of_type("u2", 0, 1023), of_type("f8", 0, 1)):
        write_files(root, *kind)
    data = ingested(root)
    kinds = {each.kind: (each.low, each.high) for each in data.pixel_values.ranges}
    assert kinds == {"uint16": (0, 1023), "float": (0, 1)}
    assert any("12 of 36 images have 16-bit values" in note for note in data.notes)
    assert min(image.std() for image in stored(root, data).values()) > 50


def test_a_range_without_any_value_of_the_images_is_refused() -> None:
    """A run stops, and an inspection says why; another range of the same images is fine."""
    root = write_files("deep", *of_type("u2", 300, 4000))
    for value_range, color in (((50_000, 60_000), "black"), ((-10, -5), "white")):
        with pytest.raises(ConfigError, match=f"from 300 to 4,000 and would be wholly {color}"):
            ingested(root, value_range=value_range)
    found = inspect_data(config_of(root, value_range=value_range), Path("inspection")).result
    assert [each.kind for each in found.findings if each.severity == "error"] == ["value_range"]
    (note, *_) = ingested(root, value_range=(300, 500)).notes
    assert "300 to 500 become 256 grey levels (set by data.value_range)" in note


def test_the_range_that_is_set_is_used_and_is_part_of_the_data_version() -> None:
    """A window by the user changes the pixels, the store and the fingerprint, not the digests."""
    root = write_files("deep", *of_type("i2", -1000, 1000))
    found, window = ingested(root), ingested(root, value_range=(-160, 240))
    assert found.fingerprint != window.fingerprint
    before, after = (manifests.load(each.manifest_file) for each in (found, window))
    assert before["pixels"].equals(after["pixels"])
    assert after.attrs["pixel_values"]["ranges"] == [{"kind": "int16", "low": -160, "high": 240}]
    stored(root, found)
    pixels = stored(root, window, value_range=(-160, 240))
    assert all(np.mean((each == 0) | (each == 255)) > 0.5 for each in pixels.values())
    percentiles = ingested(root, value_range=("1%", "99%"))
    assert percentiles.pixel_values.ranges[0].origin == "percentiles 1 and 99 of the pixels"


def test_a_range_that_changes_as_data_grows_is_said(tmp_path: Path) -> None:
    """Brighter images widen the range, which is said until a run has trained with the new one."""
    root = write_files("deep", *of_type("u2", 0, 1023))
    range_choice.remember(ingested(root).pixel_values, root, tmp_path)
    write_files(root, "more{:02}.png", of_type("u2", 0, 4095)[1])
    values = ingested(root).pixel_values
    for _ in range(2):  # a watch that reads the data does not take the note away
        [note] = range_choice.notes_on_change(values, root, tmp_path)
        assert re.search(r"was 0 to 1,023 in the last run.*--data.value-range 0 1023", note)
    range_choice.remember(values, root, tmp_path)
    assert range_choice.notes_on_change(values, root, tmp_path) == []


@pytest.mark.parametrize(
    ("bands", "extra", "reason"),
    [
        (5, [0, 0], "5 bands, and nothing says which.*--data.bands"),
        (2, [0], "2 bands, and nothing says which.*--data.bands"),
        (4, [2], r"does not look like one.*--data\.bands 1 2 3"),  # declared as opacity
    ],
)
def test_bands_that_nobody_explains_are_a_question(
    bands: int, extra: list[int], reason: str
) -> None:
    """Four bands are not opacity, and a fifth is not dropped: the run asks, with the answer."""
    root = write_files("bands", "{:02}.tif", banded(bands, extra))
    with pytest.raises(DataError, match=reason):
        ingested(root)
    data = ingested(root, bands=[bands])
    assert data.greyscale
    for path, image_HWC in stored(root, data, bands=[bands]).items():
        samples = np.frombuffer((root / path).read_bytes()[-256 * bands :], np.uint8)
        assert np.array_equal(image_HWC[:, :, 0], samples.reshape(16, 16, bands)[:, :, -1])


@pytest.mark.parametrize(("transparent", "applied"), [(0.3, True), (1.0, False)])
def test_an_opacity_is_applied_unless_it_hides_everything(
    transparent: float, applied: bool
) -> None:
    """A cut-out keeps its white surroundings; images that would be all white show themselves."""

    def file_of(texture: Values) -> bytes:
        opacity = np.where(np.arange(16) < 16 * transparent, 0, 255) * np.ones((16, 1))
        values = np.dstack([texture * 255] * 3 + [opacity])
        return encoded(Image.fromarray(values.astype(np.uint8)), "PNG")

    root = write_files("cut", "{:02}.png", file_of)
    data = ingested(root)
    assert data.pixel_values.opacity is applied
    assert any("opacity is ignored" in note for note in data.notes) is not applied
    first = next(iter(stored(root, data).values()))
    assert (first[:, :4] == 255).all() == applied
    assert first[:, 8:].std() > 30


def test_bands_that_an_image_lacks_are_refused_by_its_name() -> None:
    """The error names a file with too few bands, whatever its type."""
    root = write_files("bands", "{:02}.tif", banded(5, [0, 0]))
    write_files(root, *of_type("u1", 0, 255), images=1)
    with pytest.raises(ConfigError, match=r"data\.bands is 4 3 2, but 2 images, such as across/u1"):
        ingested(root, bands=[4, 3, 2])
    found = inspect_data(config_of(root, bands=[4, 3, 2]), Path("inspection")).result
    assert found.findings[0].kind == "bands"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"value_range": (5, 5)}, "is 5 5, but the first value must be smaller"),
        ({"value_range": (0, "99%")}, "give two values, such as 0 4095, or two percentiles"),
        ({"value_range": ("low", "high")}, "give two values, such as 0 4095, or two percentiles"),
        ({"value_range": ("1%", "101%")}, "percentiles are from 0% to 100%"),
        ({"bands": [1, 2]}, "give one, or three"),
    ],
)
def test_settings_that_make_no_sense_are_refused(data: dict[str, Any], reason: str) -> None:
    """A range has an order, percentiles are from 0 to 100, and bands are one or three."""
    with pytest.raises(UserError, match=reason):
        validate_config({"data": data})


def test_pages_and_missing_pixels_are_said() -> None:
    """Only the first page of a file is used, and pixels without a value become black."""

    def file_of(texture: Values) -> bytes:
        values = texture.astype(np.float32)[:, :, None]
        values[0, :4, 0] = np.array([np.nan, np.nan, np.inf, -9999])
        return tiff_file(values, pages=3, tags={42113: (2, list(b"-9999\0"))})

    root = write_files("pages", "{:02}.tif", file_of)
    data = ingested(root)
    for words in ("12 files have several pages", "pixels without a known value"):
        assert any(words in note for note in data.notes)
    assert all((image[0, :4] == 0).all() for image in stored(root, data).values())


def test_near_duplicates_and_measures_see_the_mapped_pixels() -> None:
    """Deep images are measured with the range of their data set: none is dark or blank."""
    root = Path("deep")
    for number in range(12):
        file = root / "ab"[number % 2] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png_file(draw_photo(number % 4, number)[:, :, :1].astype(np.uint16) * 4))
    found = inspect_data(config_of(root), Path("work")).result
    kinds = {each.kind: each for each in found.findings}
    assert not {"dark", "blank", "blurred"} & set(kinds)
    assert (kinds["value_range"].severity, kinds["value_range"].count) == ("note", 12)
    assert sum(ingested(root, group_near_duplicates=True).counts.values()) == 12


def _described(**changes: Any) -> pd.DataFrame:
    """Return the row of an image of 16 bits."""
    deep = {"kind": "uint16", "colors": 1, "bands": 1, "low": [0], "high": [60_000], **changes}
    row = {"path": "a.png", "sha256": "", "mode": "I;16", "values": json.dumps(deep)}
    return pd.DataFrame([row])


def test_other_data_is_checked_against_the_range_of_a_model() -> None:
    """Values outside are said; images that the model cannot take are refused by their names."""
    model, plain = PixelMapping((("uint16", 0.0, 4095.0),)), PixelMapping()
    [outside] = notes_on_fit(_described(), model)
    assert "outside of the range 0 to 4,095" in outside
    assert notes_on_fit(_described(), PixelMapping((("uint16", 0.0, 65535.0),))) == []
    [note] = notes_on_fit(_described(), plain)  # the values reach for the white of 16 bits
    assert note.startswith("1 image has 16-bit values, such as a.png, and the model was trained on")
    opacity = {"opacity": "straight", "clear": 1.0, "low": [0] * 4, "high": [4000] * 3 + [65535]}
    assert notes_on_fit(_described(colors=3, bands=4, **opacity), model) == []
    for rows, mapping, words in (
        (
            _described(),
            PixelMapping((), (4, 3, 2)),
            r"a\.png: it has 1 band, but the model reads 4",
        ),
        (_described(high=[4000]), plain, "16-bit values up to 4,000, and the model was trained on"),
        (_described(kind="float"), model, "floating-point values.* trained on 16-bit"),
    ):
        with pytest.raises(DataError, match=words):
            notes_on_fit(rows, mapping)


def banded(bands: int, extra: list[int] | None) -> Callable[[Values], bytes]:
    """Return what writes a texture into the last of some bands, between half and all of its range.

    One block, so that the file ends with the pixels.
    """

    def file_of(texture: Values) -> bytes:
        others = [np.full_like(texture, 90 + place) for place in range(bands - 1)]
        values = np.dstack([*others, 20 + texture * 200]).astype(np.uint8)
        return tiff_file(values, 2 if bands > 3 else 1, extra)

    return file_of


def test_values_of_another_kind_than_those_of_the_training_are_said_with_counts() -> None:
    """8 bits for a model of 16, 16 for one of 8, few of the range, and dropped bits."""
    deep = [_described(high=[high])["values"].item() for high in (4000, 3000)]
    rows = pd.DataFrame(
        {"path": [*"abcd"], "sha256": "", "mode": "L", "values": ["", *deep, '{"reduced":10}']}
    )
    notes = notes_on_fit(rows, PixelMapping((("uint16", 0.0, 65535.0),), eight_bit=False))
    words = ("2 of 4 images have 8-bit", "2 of 4 images have 16-bit", "1 of 4 images has 10 bits")
    assert [word in note for word, note in zip(words, notes, strict=True)] == [True] * 3
    assert notes_on_fit(rows[:3], PixelMapping((("uint16", 0.0, 4095.0),), eight_bit=True)) == []
