"""A data set's values become 8 bits alike for its store, its package, and new images."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import validated
from patchline.pipeline.data import ingestion
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.data.pixel_values.pixel_mapping import PixelMapping
from patchline.pipeline.data.store import prepared_store
from patchline.pipeline.data.store.store_builds import DecodedBuild
from patchline.pipeline.data.value_ranges import range_memory
from patchline.pipeline.data.value_ranges.data_values import summaries
from patchline.pipeline.data.value_ranges.model_fit import notes_on_fit
from patchline.pipeline.errors import ConfigError, DataError, UserError
from patchline.pipeline.inspection.inspecting import inspect_data
from patchline.pipeline.inspection.page import write_page
from tests.conftest import draw_photo
from tests.pipeline.data.pixel_values.made_files import png_file, tiff_file, write_files

Values = np.ndarray[Any, Any]


def config_of(root: Path, **data: Any) -> RunConfig:
    return validated({"data": {"path": str(root), "image_size": 16, **data}})


def ingested(root: Path, **data: Any) -> IngestedData:
    return ingestion.ingest(config_of(root, **data), root.parent / "work")


def stored(root: Path, data: IngestedData, **settings: Any) -> dict[str, Values]:
    """Return the images of the prepared store, by path."""
    config = ingestion.resolve(config_of(root, **settings), data)
    prepared = ingestion.prepare(config, data, root.parent / "work")
    assert prepared.image.pixel_values == data.pixel_values
    rows = manifests.usable(manifests.load(data.manifest_file))
    images = prepared_store.open_images(prepared.store)
    return dict(zip(rows["path"], images[:], strict=True))


def of_type(
    dtype: str, low: float, high: float, suffix: str = ".tif"
) -> tuple[str, Callable[[Values], bytes]]:
    """Return the name of a file, and what writes values between two into it."""

    def file_of(texture: Values) -> bytes:
        values = (low + texture * (high - low)).astype(dtype)[:, :, None]
        return png_file(values) if suffix == ".png" else tiff_file(values)

    return f"{{:02}}{suffix}", file_of


@pytest.mark.parametrize(
    ("file", "note"),
    [
        (of_type("u2", 0, 4095, ".png"), "16-bit values: 0 to 4,095 become 256 grey levels"),
        (of_type("u2", 0, 1023, ".png"), "16-bit values: 0 to 1,023 become"),
        (of_type("i4", -1000, 0), "signed 32-bit values: "),
        (of_type("i2", -1024, 3071), "set a window such as --data.value-range -160 240"),
        (of_type("f4", 0, 1), "floating-point values: 0 to 1 become"),
        (of_type("f4", 280.5, 310.2), "percentiles 0.5 and 99.5 of the pixels"),
        (of_type("u2", 29_000, 29_400, ".png"), "percentiles 0.5 and 99.5 of the pixels"),
    ],
)
def test_deep_images_keep_their_texture(
    tmp_path: Path, file: tuple[str, Callable[[Values], bytes]], note: str
) -> None:
    """Whatever the type, the store's images follow the values, and the run says by which range."""
    name, file_of = file
    root = write_files(tmp_path / "deep", name, file_of)
    data = ingested(root)
    assert any(note in each for each in data.notes), data.notes
    assert data.greyscale
    textures: dict[str, list[float]] = {"across": [], "down": []}
    for path, image_HWC in stored(root, data).items():
        grey = image_HWC[:, :, 0].astype(float)
        assert len(np.unique(grey)) > 100
        textures[path.split("/")[0]].append(grey.std(axis=0).mean() - grey.std(axis=1).mean())
    assert min(textures["across"]) > 20
    assert max(textures["down"]) < -20


def test_processes_and_threads_decode_alike_and_a_packed_store_too(tmp_path: Path) -> None:
    """The range reaches every decoder: child processes, threads, and packed images."""
    root = write_files(tmp_path / "deep", *of_type("u2", 0, 4095, ".png"))
    data = ingested(root)
    rows = manifests.usable(manifests.load(data.manifest_file))
    spec = prepared_store.StoreSpec(1, 16, 16, "crop", data.mapping)
    found = []
    for name, fewest, kind in (("t", 99, "decoded"), ("p", 1, "decoded"), ("k", 99, "packed")):
        stores = tmp_path / name
        store, _ = prepared_store.prepare(rows, root, spec, stores, kind=kind, fewest=fewest)  # type: ignore[arg-type]  # a literal
        found.append(prepared_store.open_images(store)[:])
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    plain = prepared_store.StoreSpec(1, 16, 16, "crop")
    keys = {
        DecodedBuild(rows, root, each, tmp_path, None, 1).store.name
        for each in (
            plain,
            spec,
            prepared_store.StoreSpec(1, 16, 16, "crop", PixelMapping((), (1,))),
        )
    }
    assert len(keys) == 3


def test_ordinary_images_are_as_before(tmp_path: Path) -> None:
    """Images of 8 bits get no range, no note, and no other pixel."""
    root = write_files(tmp_path / "plain", "{:02}.png", as_png)
    data = ingested(root)
    assert data.mapping.is_plain
    assert not [note for note in data.notes if "values" in note]
    for path, image_HWC in stored(root, data).items():
        with Image.open(root / path) as opened:
            assert np.array_equal(image_HWC[:, :, 0], np.asarray(opened))
    with_range = ingested(root, value_range=(0, 100))
    assert with_range.mapping.is_plain
    assert any("data.value_range has no effect" in note for note in with_range.notes)


def test_a_mixed_data_set_has_a_range_for_each_type(tmp_path: Path) -> None:
    """Images of 8 bits beside deep ones keep their values."""
    root = write_files(tmp_path / "mixed", "{:02}.png", as_png)
    write_files(root, "deep{:02}.png", of_type("u2", 0, 1023, ".png")[1])
    write_files(root, "float{:02}.tif", of_type("f8", 0, 1)[1])
    data = ingested(root)
    kinds = {each.kind: (each.low, each.high) for each in data.pixel_values.ranges}
    assert kinds == {"uint16": (0, 1023), "float": (0, 1)}
    assert any("12 of 36 images have 16-bit values" in note for note in data.notes)
    images = stored(root, data)
    spread = [float(images[path].std()) for path in images]
    assert min(spread) > 50


@pytest.mark.parametrize(
    ("value_range", "color"), [((50_000, 60_000), "black"), ((-10, -5), "white")]
)
def test_a_range_without_any_value_of_the_images_is_refused(
    tmp_path: Path, value_range: tuple[int, int], color: str
) -> None:
    """A run stops, and an inspection says why; another range of the same images is fine."""
    root = write_files(tmp_path / "deep", *of_type("u2", 300, 4000, ".png"))
    words = f"16-bit values from 300 to 4,000 and would be wholly {color}"
    with pytest.raises(ConfigError, match=words):
        ingested(root, value_range=value_range)
    found = inspect_data(config_of(root, value_range=value_range), tmp_path / "inspection").result
    errors = [each.kind for each in found.findings if each.severity == "error"]
    assert errors == ["value_range"]
    (note, *_) = ingested(root, value_range=(300, 500)).notes
    assert "300 to 500 become 256 grey levels (set by data.value_range)" in note
    assert "sets another" not in note


def test_the_range_that_is_set_is_used_and_is_part_of_the_data_version(tmp_path: Path) -> None:
    """A window by the user changes the pixels, the store and the fingerprint, not the digests."""
    root = write_files(tmp_path / "deep", *of_type("i2", -1000, 1000))
    found, window = ingested(root), ingested(root, value_range=(-160, 240))
    assert [(each.low, each.high) for each in window.pixel_values.ranges] == [(-160, 240)]
    assert found.fingerprint != window.fingerprint
    before, after = (manifests.load(each.manifest_file) for each in (found, window))
    assert before["pixels"].equals(after["pixels"])
    assert after.attrs["pixel_values"]["ranges"] == [{"kind": "int16", "low": -160, "high": 240}]
    pixels = stored(root, window, value_range=(-160, 240))
    assert all(np.mean((each == 0) | (each == 255)) > 0.5 for each in pixels.values())
    percentiles = ingested(root, value_range_percentiles=(1, 99))
    assert percentiles.pixel_values.ranges[0].origin == "percentiles 1 and 99 of the pixels"


def test_a_range_that_changes_as_data_grows_is_said(tmp_path: Path) -> None:
    """Brighter images widen the range, which is said until a run has trained with the new one."""
    root, workspace = write_files(tmp_path / "deep", *of_type("u2", 0, 1023, ".png")), tmp_path
    earlier = ingested(root).pixel_values
    assert earlier.ranges[0].high == 1023
    range_memory.remember(earlier, root, workspace)
    write_files(root, "more{:02}.png", of_type("u2", 0, 4095, ".png")[1])
    values = ingested(root).pixel_values
    for _ in range(2):  # a watch that reads the data does not take the note away
        [note] = range_memory.notes_on_change(values, root, workspace)
        assert "was 0 to 1,023 in the last run" in note
        assert "--data.value-range 0 1023" in note
    range_memory.remember(values, root, workspace)
    assert range_memory.notes_on_change(values, root, workspace) == []


@pytest.mark.parametrize(("bands", "extra"), [(4, [0]), (4, None), (5, [0, 0]), (2, [0])])
def test_bands_that_nobody_explains_are_a_question(
    tmp_path: Path, bands: int, extra: list[int] | None
) -> None:
    """Four bands are not opacity, and a fifth is not dropped: the run asks, with the answer."""
    root = write_files(tmp_path / "bands", "{:02}.tif", banded(bands, extra))
    with pytest.raises(DataError, match=f"{bands} bands, and nothing says which.*--data.bands"):
        ingested(root)
    data = ingested(root, bands=[bands])
    assert data.greyscale
    for path, image_HWC in stored(root, data, bands=[bands]).items():
        with (root / path).open("rb") as opened:
            samples = np.frombuffer(opened.read()[-256 * bands :], np.uint8)
        assert np.array_equal(image_HWC[:, :, 0], samples.reshape(16, 16, bands)[:, :, -1])


def test_a_declared_opacity_that_does_not_look_like_one_is_a_question(tmp_path: Path) -> None:
    """A near-infrared band that a program has written as opacity hides nothing unasked."""
    root = write_files(tmp_path / "bands", "{:02}.tif", banded(4, [2]))
    with pytest.raises(DataError, match=r"does not look like one.*--data\.bands 1 2 3"):
        ingested(root)
    found = inspect_data(config_of(root), tmp_path / "inspection")
    first = found.result.findings[0]
    assert (first.kind, first.severity) == ("bands", "error")
    write_page(found, tmp_path / "page.html")
    assert ingested(root, bands=[1, 2, 3]).pixel_values.bands == (1, 2, 3)


def test_a_true_opacity_is_applied_and_one_that_hides_everything_is_ignored(
    tmp_path: Path,
) -> None:
    """A cut-out keeps its white surroundings; images that would be all white show themselves."""
    for transparent, opacity in ((0.3, True), (1.0, False)):
        root = write_files(tmp_path / str(opacity), "{:02}.png", cut_out(transparent))
        data = ingested(root)
        assert data.pixel_values.opacity is opacity
        assert any("opacity is ignored" in note for note in data.notes) is not opacity
        first = next(iter(stored(root, data).values()))
        assert (first[:, :4] == 255).all() == opacity
        assert first[:, 8:].std() > 30


def test_bands_that_an_image_lacks_are_refused_by_its_name(tmp_path: Path) -> None:
    """The error names a file with too few bands, whatever its type."""
    root = write_files(tmp_path / "bands", "{:02}.tif", banded(5, [0, 0]))
    write_files(root, "grey{:02}.png", as_png, images=1)
    with pytest.raises(ConfigError, match=r"data\.bands is 4 3 2, but 2 images, such as across/gr"):
        ingested(root, bands=[4, 3, 2])
    found = inspect_data(config_of(root, bands=[4, 3, 2]), tmp_path / "inspection").result
    assert found.findings[0].kind == "bands"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            {"value_range": (5, 5)},
            r"is 5 5, but the first value must be smaller .*second\.$",
        ),
        ({"value_range": (0, float("inf"))}, "must be a finite number"),
        ({"value_range": (0, 1), "value_range_percentiles": (1, 99)}, "exclude each other"),
        ({"value_range_percentiles": (-1, 99)}, r"must be at least 0\.0"),
        ({"bands": [1, 2]}, "give one, or three"),
        ({"bands": [0, 1, 2]}, "must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(data: dict[str, Any], reason: str) -> None:
    """A range has an order, percentiles are from 0 to 100, and bands are one or three."""
    with pytest.raises(UserError, match=reason):
        validated({"data": data})


def test_pages_and_missing_pixels_are_said(tmp_path: Path) -> None:
    """Only the first page of a file is used, and pixels without a value become black."""

    def file_of(texture: Values) -> bytes:
        values = texture.astype(np.float32)[:, :, None]
        values[0, :4] = np.nan
        return tiff_file(values, pages=3)

    root = write_files(tmp_path / "pages", "{:02}.tif", file_of)
    data = ingested(root)
    assert any("12 files have several pages" in note for note in data.notes)
    assert any("pixels without a known value" in note for note in data.notes)
    assert all((image[0, :4] == 0).all() for image in stored(root, data).values())
    rows = manifests.usable(manifests.load(data.manifest_file))
    assert {(each.kind, each.pages, each.missing) for each in summaries(rows)} == {("float", 3, 4)}


def test_near_duplicates_and_measures_see_the_mapped_pixels(tmp_path: Path) -> None:
    """Deep images are measured with the range of their data set: none is dark or blank."""
    root = tmp_path / "deep"
    for label in ("one", "two"):
        (root / label).mkdir(parents=True)
        for number in range(6):
            photo = draw_photo(number % 4, number + 6 * (label == "two"), 32)[:, :, :1]
            (root / label / f"{number}.png").write_bytes(png_file(photo.astype(np.uint16) * 4))
    found = inspect_data(config_of(root), tmp_path / "work").result
    kinds = {each.kind: each for each in found.findings}
    assert not {"dark", "blank", "blurred"} & set(kinds)
    assert kinds["value_range"].severity == "note"
    assert kinds["value_range"].count == 12
    grouped = ingested(root, group_near_duplicates=True)
    assert sum(grouped.counts.values()) == 12


def test_losses_are_a_warning(tmp_path: Path) -> None:
    """An inspection with a range that leaves a few grey levels does not say that all is well."""
    root = write_files(tmp_path / "deep", *of_type("u2", 0, 1023, ".png"))
    found = inspect_data(config_of(root, value_range=(0, 65_535)), tmp_path / "work").result
    finding = next(each for each in found.findings if each.kind == "value_range")
    assert finding.severity == "warning"
    assert "grey levels for" in finding.summary


def test_other_data_is_checked_against_the_range_of_a_model() -> None:
    """Values outside are said; images that the model cannot take are refused by their names."""
    deep = {"kind": "uint16", "colors": 1, "bands": 1, "low": [0], "high": [60_000]}
    rows = pd.DataFrame({"path": ["a.png"], "mode": ["I;16"], "values": [json.dumps(deep)]})
    model = PixelMapping((("uint16", 0.0, 4095.0),))
    assert "outside of the range 0 to 4,095" in notes_on_fit(rows, model)[0]
    assert notes_on_fit(rows, PixelMapping((("uint16", 0.0, 65535.0),))) == []
    with pytest.raises(DataError, match=r"a\.png: it has 1 band, but the model reads 4, 3, 2"):
        notes_on_fit(rows, PixelMapping((), (4, 3, 2)))
    plain = PixelMapping()
    [note] = notes_on_fit(rows, plain)  # the values reach for the white of 16 bits
    assert note.startswith("1 image has 16-bit values, such as a.png, and the model was trained on")
    rows["values"] = json.dumps({**deep, "high": [4000]})
    with pytest.raises(
        DataError, match="16-bit values up to 4,000, and the model was trained on 8"
    ):
        notes_on_fit(rows, plain)
    rows["values"] = json.dumps({**deep, "kind": "float"})
    with pytest.raises(DataError, match=r"floating-point values.* trained on 16-bit"):
        notes_on_fit(rows, model)


def test_values_of_another_kind_than_those_of_the_training_are_said_with_counts() -> None:
    """8 bits for a model of 16, 16 for one of 8, few of the range, and dropped bits."""
    deep = {"kind": "uint16", "colors": 1, "bands": 1, "low": [0], "high": [4000]}
    described = ["", json.dumps(deep), json.dumps({**deep, "high": [3000]}), '{"reduced":10}']
    rows = pd.DataFrame({"path": list("abcd"), "mode": "L", "values": described})
    ranges = (("uint16", 0.0, 65535.0),)
    only_deep = PixelMapping(ranges, eight_bit=False)
    notes = notes_on_fit(rows, only_deep)
    assert len(notes) == 3
    assert notes[0].startswith(
        "2 of 4 images have 8-bit values, such as a, and the model was trained on images of 16-bit "
    )
    assert notes[1].startswith(
        "2 of 4 images have 16-bit values of at most 4,000, such as b, and the model was "
    )
    assert "1 of 4 images has 10 bits per color, such as d, which the decoder" in notes[2]
    both = PixelMapping((("uint16", 0.0, 4095.0),), eight_bit=True)
    assert notes_on_fit(rows[:3], both) == []
    assert PixelMapping.of({**both.json(), "eight_bit": False}) == both  # no pixel differs


def test_opacity_does_not_count_as_a_value_outside_of_the_range() -> None:
    """Opacity has all 16 bits, whatever the colors have."""
    deep = {"kind": "uint16", "colors": 3, "bands": 4, "opacity": "straight", "clear": 1.0}
    deep |= {"low": [0, 0, 0, 0], "high": [4000, 4000, 4000, 65535]}
    rows = pd.DataFrame({"path": ["a"], "mode": ["RGBA"], "values": [json.dumps(deep)]})
    assert notes_on_fit(rows, PixelMapping((("uint16", 0.0, 4095.0),))) == []


def test_bits_that_a_decoder_drops_are_said(tmp_path: Path) -> None:
    """CMYK of 16 bits is read, and what is lost of it is a note of a run and an inspection."""

    def file_of(texture: Values) -> bytes:
        return tiff_file(np.dstack([texture * 60_000] * 4).astype(np.uint16), 5)

    root = write_files(tmp_path / "data", "{:02}.tif", file_of)
    [note] = [each for each in ingested(root).notes if "bits per color" in each]
    assert "images have up to 16 bits per color, such as" in note
    found = inspect_data(config_of(root), tmp_path / "work").result
    finding = next(each for each in found.findings if each.kind == "value_range")
    assert (finding.severity, finding.count) == ("note", found.images)
    assert "Maps the values" not in finding.action


def test_files_that_declare_different_whites_are_said(tmp_path: Path) -> None:
    """One range maps 10 and 12 bits alike, so those of 10 become darker."""
    files = iter(range(1000))

    def file_of(texture: Values) -> bytes:
        bits = 10 if next(files) % 2 else 12
        values = (texture * ((1 << bits) - 1)).astype(np.uint16)[:, :, None]
        return png_file(values, significant=bits)

    root = write_files(tmp_path / "data", "{:02}.png", file_of)
    [note] = [each for each in ingested(root).notes if "values of white" in each]
    assert "declare different values of white, 1,023 (" in note
    assert "to 4,095; one range maps all of them" in note


def as_png(texture: Values) -> bytes:
    file = io.BytesIO()
    Image.fromarray((texture * 255).astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


def banded(bands: int, extra: list[int] | None) -> Callable[[Values], bytes]:
    """Return what writes a texture into the last of some bands, between half and all of its range.

    One block, so that the file ends with the pixels.
    """

    def file_of(texture: Values) -> bytes:
        others = [np.full_like(texture, 90 + place) for place in range(bands - 1)]
        values = np.dstack([*others, 20 + texture * 200]).astype(np.uint8)
        return tiff_file(values, 2 if bands > 3 else 1, extra)

    return file_of


def cut_out(transparent: float) -> Callable[[Values], bytes]:
    """Return what writes a picture of which a share, from the left, is transparent."""

    def file_of(texture: Values) -> bytes:
        opacity = np.where(np.arange(16) < 16 * transparent, 0, 255) * np.ones((16, 1))
        values = np.dstack([texture * 255] * 3 + [opacity]).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(values).save(file, "PNG")
        return file.getvalue()

    return file_of
