"""Pictures are drawn for any patch embedding, repeat byte by byte, and explain what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from patchline.pipeline.errors import ConfigError, DataError, PluginError
from patchline.pipeline.evaluation.visual_guide.patch_embedding_picture import (
    EmbeddingView,
    Photo,
    draw_overview,
    draw_view,
    load_photo,
    save_figure,
    save_picture,
    view,
)
from patchline.pipeline.plugin_system import plugin_loader
from tests.conftest import draw_photo

SETTINGS = {"patch_size": 56}  # few tokens, so that a test takes little time


_STRIPS = '''"""Strips."""
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
    build=lambda config, context: Strips(context),
)
'''


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


def test_a_picture_has_its_size_and_repeats(
    tmp_path: Path, shown: EmbeddingView, photo: Photo
) -> None:
    """A PNG is 1440 pixels wide and small; the same bytes come twice, also as SVG and PDF."""
    torch.manual_seed(5)
    figures = [draw_view(each, photo) for each in (shown, view("conv", SETTINGS))]
    for ending in ("png", "svg", "pdf"):
        files = [save_figure(each, tmp_path / f"{n}.{ending}") for n, each in enumerate(figures)]
        assert files[0].read_bytes() == files[1].read_bytes()
    with Image.open(tmp_path / "1.png") as picture:
        assert picture.size == (1440, 540)
    assert (tmp_path / "1.png").stat().st_size < 400_000
    assert len(draw_overview([shown] * 3, photo).axes) == 6


def test_the_photo_is_its_centre_at_224_pixels(tmp_path: Path, photo_file: Path) -> None:
    """A photo is cut to its square centre, in colour, whatever its mode; there is a default."""
    assert load_photo(photo_file).shape == load_photo(None).shape == (224, 224, 3)
    halves = np.zeros((100, 400), np.uint8)
    halves[:, 150:250] = 200
    Image.fromarray(halves).save(tmp_path / "grey.png")
    assert np.all(load_photo(tmp_path / "grey.png") == 200)


def test_an_embedding_of_ones_own_is_drawn(tmp_path: Path, photo_file: Path) -> None:
    """A plugin file, here with a single row of tokens, is drawn like a built-in."""
    (tmp_path / "strips.py").write_text(_STRIPS)
    plugin_loader.use_plugin_files([tmp_path / "strips.py"])
    state = torch.random.get_rng_state()
    figure = draw_view(view("strips", {}), load_photo(photo_file))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert "4 tokens on a grid of 1 x 4" in _texts(figure)
    assert "stride 224 down, 56 across" in _texts(figure)
    assert "at least" not in _texts(figure)
    assert "Costs $5 or $6" in _texts(figure)
    assert not any(text.get_parse_math() for text in figure.texts)


@pytest.mark.parametrize(
    ("name", "settings", "photo", "out", "error", "words"),
    [
        ("conv", {}, "none.png", "out.jpg", ConfigError, r"\.png, \.svg or \.pdf"),
        ("conv", {}, "none.png", "out.png", DataError, r"none\.png cannot be read.*Give the path"),
        ("conv", {}, "broken.png", "out.png", DataError, r"broken\.png cannot be read"),
        ("conv", {"patch_size": 15}, None, "out.png", ConfigError, "does not divide the 224x224"),
        ("covn", {}, None, "out.png", PluginError, "Did you mean 'conv'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    tmp_path: Path,
    name: str,
    settings: Any,
    photo: str | None,
    out: str,
    error: type[Exception],
    words: str,
) -> None:
    """A wrong ending, photo, setting or name is explained, and no file is written."""
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nshort")
    with pytest.raises(error, match=words):
        save_picture(name, settings, tmp_path / photo if photo else None, tmp_path / "new" / out)
    assert not (tmp_path / "new").exists()
