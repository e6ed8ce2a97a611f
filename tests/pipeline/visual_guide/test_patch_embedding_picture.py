"""Pictures are drawn for any patch embedding, repeat byte by byte, and explain what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from patchline.pipeline.errors import ConfigError, DataError, PluginError
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.plugin_loader import FILES_VARIABLE
from patchline.pipeline.visual_guide.patch_embedding_picture import (
    EmbeddingView,
    Photo,
    draw,
    draw_overview,
    draw_view,
    load_photo,
    save_figure,
    save_picture,
    view,
)
from tests.conftest import draw_photo

SETTINGS = {"patch_size": 56}  # few tokens, so that a test takes little time


@pytest.fixture(scope="module")
def shown() -> EmbeddingView:
    """Return what is drawn of large patches."""
    return view("conv", SETTINGS)


@pytest.fixture(scope="module")
def photo() -> Photo:
    """Return a photo of the size that is drawn, with few colours, which are found quickly."""
    return draw_photo(0, 0, side=14).repeat(16, axis=0).repeat(16, axis=1)


@pytest.fixture
def photo_file(tmp_path: Path) -> Path:
    """Return a file with a photo that is wider than high."""
    file = tmp_path / "wide.png"
    Image.fromarray(draw_photo(1, 0, side=30)[:25].repeat(10, axis=0).repeat(10, axis=1)).save(file)
    return file


def _texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.texts)


def test_a_view_says_what_was_measured(shown: EmbeddingView) -> None:
    """Name, summary, tokens, receptive field and parameters are those of the settings."""
    assert (shown.name, shown.field.grid, shown.field.size) == ("conv", (4, 4), (56, 56))
    assert shown.summary == plugin_loader.load_patch_embedding("conv").summary
    assert shown.parameters == 192 * (3 * 56 * 56 + 1)
    caption = " ".join(shown.caption.split())
    assert "16 tokens on a grid of 4 x 4 · each sees 56 x 56 pixels · stride 56 pixels" in caption
    assert "1,806,528 parameters" in caption


def test_the_figure_has_four_panels_and_its_words(shown: EmbeddingView, photo: Photo) -> None:
    """The grid has its lines, three boxes lie on the photo, and each pixel is in one patch."""
    figure = draw_view(shown, photo)
    grid, neighbours, influence, counts, _ = figure.axes
    assert [len(lines.get_paths()) for lines in grid.collections] == [3, 3]
    outlines = {patch.get_edgecolor() for patch in neighbours.patches if not patch.get_fill()}
    assert len(outlines) == 3
    drawn = np.asarray(influence.images[0].get_array())
    assert drawn[84, 84].tolist() != drawn[10, 10].tolist()
    assert np.unique(np.asarray(counts.images[0].get_array())).tolist() == [1]
    for words in (shown.name, shown.summary, shown.caption):
        assert words in _texts(figure)


def test_no_text_lies_on_another_or_outside(shown: EmbeddingView, photo: Photo) -> None:
    """The words of a figure keep clear of each other and of its border."""
    for figure in (draw_view(shown, photo), draw_overview([shown] * 3, photo)):
        figure.draw_without_rendering()
        texts = [*figure.texts, *(axes.title for axes in figure.axes)]
        texts += [axes._left_title for axes in figure.axes]  # type: ignore[attr-defined]  # a left title has no public name
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        assert len(boxes) >= 9
        for place, box in enumerate(boxes):
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= figure.bbox.x1
            assert box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(other) for other in boxes[:place])


def test_a_picture_has_its_size_and_repeats(
    tmp_path: Path,
    shown: EmbeddingView,
    photo: Photo,
) -> None:
    """A PNG is 1440 pixels wide on white, small, and the same bytes twice; so are SVG and PDF."""
    figures = [draw_view(shown, photo) for _ in range(2)]
    for ending in ("png", "svg", "pdf"):
        files = [tmp_path / f"{turn}.{ending}" for turn in (1, 2)]
        for figure, file in zip(figures, files, strict=True):
            assert save_figure(figure, file) == file
        first, second = (file.read_bytes() for file in files)
        assert first == second
        assert b"CreationDate" not in first
        assert b"<dc:date>" not in first
    with Image.open(tmp_path / "1.png") as picture:
        assert picture.size == (1440, 540)
        assert picture.convert("RGB").getpixel((2, 2)) == (255, 255, 255)
        assert not {"Software", "Creation Time"} & set(picture.info)
    assert (tmp_path / "1.png").stat().st_size < 400_000


def test_save_picture_draws_a_file(tmp_path: Path, photo_file: Path) -> None:
    """From a name, settings and a photo comes a picture; torch's generator has not moved."""
    torch.manual_seed(7)  # a state that no earlier drawing can have left
    state = torch.random.get_rng_state()
    out = tmp_path / "new/folder/conv.PNG"
    assert save_picture("conv", SETTINGS, photo_file, out) == out
    assert torch.equal(torch.random.get_rng_state(), state)
    with Image.open(out) as picture:
        assert picture.format == "PNG"


def test_the_weights_do_not_depend_on_the_generator(shown: EmbeddingView) -> None:
    """Wherever torch's generator stands, the same influence is measured."""
    torch.manual_seed(5)
    again = view("conv", SETTINGS)
    assert np.array_equal(again.field.influence_HW, shown.field.influence_HW)


def test_the_photo_is_its_centre_at_224_pixels(tmp_path: Path, photo_file: Path) -> None:
    """A photo is cut to its square centre, in colour, whatever its mode; there is a default."""
    assert load_photo(photo_file).shape == load_photo(None).shape == (224, 224, 3)
    halves = np.zeros((100, 400), np.uint8)
    halves[:, 150:250] = 200
    Image.fromarray(halves).save(tmp_path / "grey.png")
    assert np.all(load_photo(tmp_path / "grey.png") == 200)


def test_the_overview_has_a_pair_of_panels_for_each(shown: EmbeddingView, photo: Photo) -> None:
    """Two panels and a line of text stand for each embedding, the smallest field first."""
    small = view("conv", {"patch_size": 28})
    figure = draw_overview([shown, small, shown], photo)
    assert len(figure.axes) == 6
    text = _texts(figure)
    assert text.index("sees 28 x 28, stride 28") < text.index("sees 56 x 56, stride 56")


def test_an_embedding_of_ones_own_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photo_file: Path
) -> None:
    """A plugin file, here with a single row of tokens, is drawn like a built-in."""
    monkeypatch.setenv(FILES_VARIABLE, "")
    plugin_loader.use_plugin_files([_written_plugin(tmp_path / "strips.py", "Strips(context)")])
    figure = draw("strips", {}, load_photo(photo_file))
    assert "4 tokens on a grid of 1 x 4" in _texts(figure)
    assert "stride 224 down, 56 across" in _texts(figure)
    assert "at least" not in _texts(figure)
    assert "Costs $5 or $6" in _texts(figure)
    assert not any(text.get_parse_math() for text in figure.texts)


def test_a_plugin_that_builds_no_module_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no torch module cannot be measured."""
    monkeypatch.setenv(FILES_VARIABLE, "")
    plugin_loader.use_plugin_files([_written_plugin(tmp_path / "nothing.py", "None")])
    with pytest.raises(PluginError, match=r"'nothing' built a NoneType, not a torch\.nn\.Module"):
        view("nothing", {})


def _written_plugin(file: Path, built: str) -> Path:
    file.write_text(f'''"""Strips."""
import torch
from patchline.plugin_api import PatchEmbeddingPlugin, PatchTokens, PluginConfig

class Strips(torch.nn.Module):
    def __init__(self, context):
        super().__init__()
        size = (context.height, context.width // 4)
        self.layer = torch.nn.Conv2d(context.channels, context.embed_dim, size, stride=size)
        self.grid = (1, 4)

    def forward(self, images_BCHW):
        return PatchTokens(self.layer(images_BCHW).flatten(2).transpose(1, 2), self.grid)

plugin = PatchEmbeddingPlugin(
    summary="Costs $5 or $6", paper="", config_class=PluginConfig,
    build=lambda config, context: {built},
)
''')
    return file


@pytest.mark.parametrize("name", ["conv", "conv.txt", "conv.jpg"])
def test_an_ending_that_cannot_be_drawn_is_refused(tmp_path: Path, name: str) -> None:
    """The ending is named, with those that can be drawn, before anything is read or measured."""
    with pytest.raises(ConfigError, match=r"\.png, \.svg or \.pdf") as caught:
        save_picture("conv", {}, tmp_path / "no photo", tmp_path / name)
    assert name in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b"no photo", b"\x89PNG\r\n\x1a\nshort"])
def test_a_photo_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """A photo that is missing, empty or broken is named."""
    file = tmp_path / "photo.png"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"photo\.png cannot be read.*Give the path"):
        save_picture("conv", {}, file, tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """Unknown settings, patches that do not divide the photo and unknown plugins are explained."""
    with pytest.raises(ConfigError, match="patch_sise"):
        save_picture("conv", {"patch_sise": 16}, None, tmp_path / "out.png")
    with pytest.raises(ConfigError, match="patch_size 15 does not divide the 224x224 image"):
        save_picture("conv", {"patch_size": 15}, None, tmp_path / "out.png")
    with pytest.raises(PluginError, match="Did you mean 'conv'"):
        save_picture("covn", {}, None, tmp_path / "out.png")
    assert not (tmp_path / "out.png").exists()
