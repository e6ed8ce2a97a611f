"""The visual guide: every number on the page is the model's, and every model gets a page."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from benchmarks.visual_guide_chapter import PICTURES, write_chapter
from patchline.pipeline.config import RunConfig
from patchline.pipeline.evaluation.metrics.label_calibration import (
    LabelCalibration,
    LabelThresholds,
)
from patchline.pipeline.evaluation.metrics.temperature import UNRECORDED
from patchline.pipeline.evaluation.visual_guide import explaining
from patchline.pipeline.evaluation.visual_guide.attention_maps import run_covering_test
from patchline.pipeline.evaluation.visual_guide.explaining import (
    ImageToExplain,
    choose_stored_queries,
    explain,
    pack,
    subject_of,
    write_guide,
)
from patchline.pipeline.evaluation.visual_guide.steps import steps_of
from patchline.pipeline.evaluation.visual_guide.traced_image import Pixels
from patchline.pipeline.models.calibrated_models import Ensemble
from patchline.pipeline.models.layers.intermediate_values import IntermediateValues, record_values
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.model_files import save_model
from patchline.plugins.models.vit import VitConfig
from tests.conftest import draw_photo
from tests.pipeline.evaluation.visual_guide.made_guides import (
    CLASSES,
    SIDE,
    Guide,
    make_guide,
    make_model,
    rows_of,
    unpack,
)
from tests.structure.pages import blocks

VARIANTS: dict[tuple[str, str], tuple[dict[str, Any], list[int]]] = {
    ("vit", "conv_stem"): (
        {"layer_scale": 0.5, "embedding_norm": True, "qk_norm": True},
        [6, 7, 8, 4],
    ),
    ("vit", "overlap"): (
        {"pooling": "average", "positions": "sine_cosine"},
        [5, 6, 7, 8, 2, 3],
    ),
    ("vit", "hybrid"): ({"pooling": "attention", "positions": "none"}, [5, 6, 7, 8, 2, 3]),
    ("vit", "flexi"): ({"head": "tanh", "norm": "rms_norm"}, [1, 5, 6, 7, 8]),
    ("simple_vit", "conv"): ({}, [5, 6, 7, 8, 2, 3]),
    ("vit_registers", "whitened"): ({"num_registers": 2}, [5, 6, 7, 8, 2, 3, 4]),
    ("rope_vit", "linear"): (
        {"absolute_positions": True, "num_registers": 1},
        [6, 7, 8, 2, 3, 4],
    ),
    ("cct", "cct"): ({}, [5, 6, 7, 8]),
    ("vit_small_data", "shifted"): ({}, [5, 7, 8, 2, 3, 4]),
}
"""Settings of each built-in ViT with a patch embedding, and the equations of the paper that it
computes; each embedding is there, too."""
CLOSED: dict[str, dict[str, Any]] = {
    "torchvision": {"name": "torchvision", "architecture": "resnet18"},
    "timm": {"name": "timm", "architecture": "test_vit"},
}
DEPTH = 2


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Guide:
    """Return the guide to an image in a ViT with a class token."""
    return make_guide({"name": "vit", "depth": DEPTH}, tmp_path_factory.mktemp("guide"))


def _values(guide: Guide) -> tuple[IntermediateValues, torch.Tensor]:
    """Return what the model computes, found without the guide."""
    with torch.inference_mode(), record_values(guide.model) as values:
        logits_BK = guide.model(guide.network_input)
    return values, logits_BK


@pytest.mark.parametrize(("name", "embedding"), VARIANTS)
def test_every_vit_gets_the_whole_story(name: str, embedding: str, tmp_path: Path) -> None:
    """Each built-in ViT and embedding has all steps, with the shapes of its own tensors."""
    side = 32 if embedding == "hybrid" else 16
    settings, equations = VARIANTS[name, embedding]
    model = {"name": name, "patch_embedding": {"name": embedding}, **settings}
    guide = make_guide({**model, "depth": DEPTH}, tmp_path, side=side)
    assert len(guide.steps) == 22
    shown = re.findall(r"<small>equation (\d) of arXiv", guide.html)
    assert [int(number) for number in shown] == equations
    values, _ = _values(guide)
    block = values.blocks[0]
    assert guide.shapes["z₀"] == tuple(block.tokens_in_BND.shape[1:])
    assert guide.shapes["z_L"] == tuple(values.blocks[-1].tokens_out_BND.shape[1:])
    assert guide.shapes["Q"] == tuple(block.attention.query_BHNd.shape[2:])
    assert guide.shapes["A, all heads"] == tuple(block.attention.weights_BHNN.shape[1:])
    assert guide.shapes["all attention"] == (DEPTH, *block.attention.weights_BHNN.shape[1:])
    assert guide.shapes["concatenated"] == tuple(block.tokens_in_BND.shape[1:])
    _assert_attention_is_stored(guide, values)


def test_a_flip_at_test_time_is_told_and_counted(tmp_path: Path) -> None:
    """The page shows the image's own tokens, and an answer that is that of both views."""
    model = {"name": "vit", "depth": DEPTH, "pooling": "average", "test_time_flip": True}
    guide = make_guide(model, tmp_path)
    assert "The same was done with the mirror image" in guide.html
    values, _ = _values(guide)
    assert len(values.blocks[0].tokens_in_BND) == 2
    after_last_block_K = guide.numbers["readouts"][-1]
    np.testing.assert_allclose(after_last_block_K, guide.numbers["probabilities"], atol=1e-4)


def _assert_attention_is_stored(guide: Guide, values: IntermediateValues) -> None:
    stored = rows_of(guide.numbers["attention"])
    for layer, block in enumerate(values.blocks):
        weights_HNN = block.attention.weights_BHNN[0].numpy()
        step = weights_HNN.max(axis=-1, keepdims=True) / 255
        assert np.all(np.abs(stored[layer] - weights_HNN) <= step)


@pytest.mark.parametrize("name", CLOSED)
def test_other_models_get_the_image_the_answer_and_the_attribution(
    name: str, tmp_path: Path
) -> None:
    """The page of an adapter says why it is shorter."""
    side = 160 if name == "timm" else 32
    guide = make_guide(CLOSED[name], tmp_path, side=side)
    assert guide.steps == ["example", "image", "answer", "attribution"]
    assert "did not build the layers of this model" in guide.html


def test_an_ensemble_gets_the_same_short_page(tmp_path: Path) -> None:
    """Its members are ViTs that could be shown, but the answer is that of all together."""
    model, description = make_model({"name": "vit", "depth": 1})
    ensemble = Ensemble([model, model], [UNRECORDED] * 2, len(description.classes)).eval()
    subject = subject_of(ensemble, description, _image("rose", "rose"))
    write_guide([subject], "flowers/3", tmp_path / "guide.html")
    html = (tmp_path / "guide.html").read_text("utf-8")
    assert "This model is an ensemble: the average of 2 networks" in html
    assert html.count('<section class="step"') == 4
    assert subject.attributions.occlusion_hw is not None


def test_the_numbers_are_those_of_the_model(guide: Guide) -> None:
    """Attention, its rollout and the shown scores, calibrated probabilities and each readout."""
    values, logits_BK = _values(guide)
    numbers, blocks = guide.numbers, values.blocks
    model: Any = guide.model
    rows_LHN = np.stack([block.attention.weights_BHNN[0, :, 0].numpy() for block in blocks])
    flow_NN = torch.eye(blocks[0].tokens_in_BND.shape[1])
    for block in blocks:
        mixed_NN = block.attention.weights_BHNN[0].mean(dim=0) / 2 + torch.eye(len(flow_NN)) / 2
        flow_NN = mixed_NN @ flow_NN
    with torch.inference_mode():
        read = [model.head(model.norm(each.tokens_out_BND[:, 0]))[0] for each in blocks]
    probabilities_K = torch.softmax(logits_BK[0] / 1.3, dim=0).numpy()
    assert f"{100 * probabilities_K.max():.2f}%" in guide.html
    for name, expected in (
        ("class_rows", rows_LHN),
        ("rollout", flow_NN[0].numpy()),
        ("probabilities", probabilities_K),
        ("readouts", torch.softmax(torch.stack(read) / 1.3, dim=1).numpy()),
    ):
        np.testing.assert_allclose(numbers[name], expected, atol=1e-4)
    scores = blocks[0].attention.scores_BHNN[0, numbers["head"]].numpy()
    step = np.ptp(scores, axis=-1, keepdims=True) / 255
    assert np.all(np.abs(rows_of(numbers["scores"]) - scores) <= step)


def test_the_page_asks_nobody_for_anything(guide: Guide) -> None:
    """Every address is data or a place on the page, and every picture has a text beside it."""
    pattern = r'\s(?:src|srcset|data|action|poster|href)="([^"]*)"'
    addresses = re.findall(pattern, guide.html)
    assert addresses
    assert {each for each in addresses if not each.startswith(("data:image/", "#"))} == set()
    assert re.findall(r'<img(?![^>]*\salt="[^"])[^>]*>', guide.html) == []
    assert not re.search(r"https?://|@import|fetch\(|XMLHttpRequest|WebSocket", guide.html)
    assert all(each.startswith("data:") for each in re.findall(r"url\(([^)]*)\)", guide.html))


def test_names_of_classes_are_text(guide: Guide) -> None:
    """A class may be called like an element; the page shows its name."""
    assert "<b>weed</b>" not in guide.html
    assert "&lt;b&gt;weed" in guide.html
    assert guide.numbers["classes"][3] == r"<b>weed</b>\n- 7"
    assert r"tulip, &lt;b&gt;weed&lt;/b&gt;\n- 7." in guide.html  # a line break ends no sentence


def test_a_greyscale_image_gets_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One channel, 8 by 8 pixels: as small as the digits; a page that is too large says so."""
    monkeypatch.setattr(explaining, "MOST_BYTES", 100)
    guide = make_guide({"name": "vit", "depth": 1}, tmp_path, channels=1, side=8, label=None)
    assert guide.shapes["image"] == (1, 8, 8)
    assert "Its true label is not known here." in guide.html
    assert guide.numbers["true"] is None
    assert "picking a patch shows the nearest of them" in guide.html


def test_a_large_grid_stores_fewer_rows() -> None:
    """With 1,024 patches and 12 x 12 heads, every few rows and columns can be picked."""
    queries = choose_stored_queries((32, 32), 1, (12, 12, 1025, 1025), 6_500_000)
    assert queries[0] == 0
    assert 25 <= len(queries) < 1025
    assert 12 * 12 * len(queries) * 1025 <= 6_500_000
    assert choose_stored_queries((14, 14), 1, (12, 12, 197, 197), 6_500_000) == list(range(197))


def test_masked_scores_can_be_stored() -> None:
    """A score of minus infinity becomes the row's minimum; the others keep their values."""
    rows = np.array([[-np.inf, 1.0, 3.0], [2.0, -np.inf, -2.0]])
    restored = unpack(pack(rows))
    np.testing.assert_allclose(restored, [[1, 1, 3], [2, -2, -2]], atol=0.02)


FITS = LabelCalibration(
    scales=(0.5, 0.8, 1.0, 1.0), shifts=(0.3, -0.2, 0.0, 0.0), determined=(True, True, True, False)
)
VIT = {"name": "vit", "depth": 2}


def _sets(
    thresholds: tuple[float, ...] = (0.4, 0.5, 0.6, 0.5),
) -> tuple[nn.Module, ModelDescription]:
    model, description = make_model(VIT)
    values = LabelThresholds(values=thresholds, fitted=(True, True, True, False))
    sets = {"task": "multi_label", "label_calibration": FITS, "thresholds": values}
    return model, description.model_copy(update={**sets, "temperature": 1.0})


def _pixels() -> Pixels:
    return np.random.default_rng(3).integers(0, 256, (SIDE, SIDE, 3), np.uint8)


def _image(name: str, label: str | None) -> ImageToExplain:
    return ImageToExplain(name, _pixels(), _pixels(), label)


def test_every_probability_is_a_sigmoid_of_its_own() -> None:
    """Those after each block too; the labels at or above their thresholds are given."""
    model, description = _sets()
    subject = subject_of(model, description, _image("a", None), occlusion=False)
    traced = subject.traced
    expected = FITS.probabilities(traced.logits_K[None])[0]
    np.testing.assert_allclose(traced.probabilities_K, expected, atol=1e-6)
    readouts = subject.inside.readouts_LK
    assert readouts is not None
    np.testing.assert_allclose(readouts[-1], expected, atol=1e-5)
    given = {k for k in range(4) if expected[k] >= (0.4, 0.5, 0.6, 0.5)[k]}
    assert set(subject.labels) == given
    assert subject.attributions.label == int(expected.argmax())
    covered = run_covering_test(model, description, [_pixels()] * 2, seed=0)
    assert covered is not None
    assert covered.before == pytest.approx(float(expected.max()), abs=1e-5)


@pytest.mark.parametrize(("label", "thresholds"), [("tulip", (0.4,) * 4), (None, (1.0,) * 4)])
def test_the_page_explains_a_chosen_label(
    tmp_path: Path, label: str | None, thresholds: tuple[float, ...]
) -> None:
    """By default the most probable one; the page tells of sigmoids and thresholds, not softmax."""
    model, description = _sets(thresholds)
    save_model(tmp_path / "model", model, description)
    (tmp_path / "rose").mkdir()
    Image.fromarray(draw_photo(1, 1, SIDE)).save(tmp_path / "rose" / "photo.png")
    page = tmp_path / "page.html"
    [answer] = explain(
        tmp_path / "model", [(tmp_path / "rose" / "photo.png", label)], page, "flowers/3"
    )
    html = page.read_text("utf-8")
    assert answer.labels is not None
    assert answer.true_label is None
    assert answer.label == (answer.labels[0]["label"] if answer.labels else None)
    assert answer.explained == (label or answer.explained)
    assert answer.explained in CLASSES
    assert "A sigmoid turns each logit into a probability of its own" in html
    assert "probabilities that sum to 1" not in html
    assert f"The model gives this image {len(answer.labels) or 'no'} label" in html
    assert ("below its threshold" in html) is (label is None)


CHAPTER = Path(__file__).resolve().parents[4] / "docs" / "visual_guide.md"


def test_its_command_trains_the_model_that_it_explains() -> None:
    """The ViT of the paper: a class token, learned positions, a head of one linear layer."""
    [command] = [block for block in blocks(CHAPTER, "text") if block.startswith("patchline run")]
    assert "--preset none" in command
    names = {
        word.removeprefix("--model.") for word in command.split() if word.startswith("--model")
    }
    assert names.isdisjoint({"name", "pooling", "positions", "head"})
    plain = VitConfig()
    assert (plain.pooling, plain.positions, plain.head) == ("class_token", "learned", "linear")
    assert RunConfig().model.name == "vit"


def test_every_step_of_the_chapter_is_filled_in(tmp_path: Path) -> None:
    """All pictures that the page shows are there, and the shapes are those of this model."""
    embedding = {"name": "linear", "patch_size": 4}
    model, description = make_model({"name": "vit", "depth": 2, "patch_embedding": embedding})
    page = tmp_path / "visual_guide.md"
    shutil.copy(CHAPTER, page)
    subject = subject_of(model, description, _image("image 0", "rose"))
    write_chapter(subject, page)
    text = page.read_text("utf-8")
    assert "image 0" in text
    titles = re.findall(r"^## \d+\. (.+)$", text, re.MULTILINE)
    for title, step in zip(titles, steps_of(subject), strict=True):
        assert step.title.startswith(title)
    times = text.replace(" \N{MULTIPLICATION SIGN} ", " x ")
    assert "Shapes: patches **16 x 4 x 4 x 3** (n x p x p x C)." in times
    shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(shown) > 25
    for name in shown:
        assert min(Image.open(tmp_path / name).size) >= 16
    assert len(list((tmp_path / PICTURES).iterdir())) == len(shown)
