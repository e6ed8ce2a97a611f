"""The visual guide: every number on the page is the model's, and every model gets a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from patchline.pipeline.layers.intermediate_values import IntermediateValues, recorded
from patchline.pipeline.metrics.temperature import UNRECORDED
from patchline.pipeline.models.ensemble import Ensemble
from patchline.pipeline.visual_guide import page_data
from patchline.pipeline.visual_guide.explaining import ImageToExplain, subject_of, write_guide
from patchline.pipeline.visual_guide.page_data import pack, stored_queries, unpack
from tests.pipeline.visual_guide.made_guides import (
    SIDE,
    Addresses,
    Guide,
    make_guide,
    make_model,
    rows_of,
)

VARIANTS: dict[tuple[str, str], dict[str, Any]] = {
    ("vit", "conv"): {"layer_scale": 0.5},
    ("vit", "linear"): {"embedding_norm": True, "qk_norm": True, "norm": "rms_norm"},
    ("vit", "conv_stem"): {"pooling": "average", "positions": "sine_cosine"},
    ("vit", "overlap"): {"pooling": "average", "test_time_flip": True},
    ("vit", "hybrid"): {"pooling": "attention", "positions": "none"},
    ("vit", "flexi"): {"head": "tanh"},
    ("simple_vit", "conv"): {},
    ("vit_registers", "whitened"): {"num_registers": 2},
    ("rope_vit", "conv"): {"frequencies": "axial"},
    ("rope_vit", "linear"): {"absolute_positions": True, "num_registers": 1},
    ("cct", "cct"): {},
    ("vit_small_data", "shifted"): {},
}
"""Settings of each built-in ViT with a patch embedding; each embedding is there, too."""
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
    with torch.inference_mode(), recorded(guide.model) as values:
        logits_BK = guide.model(guide.network_input)
    return values, logits_BK


@pytest.mark.parametrize(("name", "embedding"), VARIANTS)
def test_every_vit_gets_the_whole_story(name: str, embedding: str, tmp_path: Path) -> None:
    """Each built-in ViT and embedding has all steps, with the shapes of its own tensors."""
    side = 32 if embedding == "hybrid" else 16
    model = {"name": name, "patch_embedding": {"name": embedding}, **VARIANTS[name, embedding]}
    guide = make_guide({**model, "depth": DEPTH}, tmp_path, side=side)
    assert len(guide.steps) == 22
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


def test_one_block_is_told_as_one(tmp_path: Path) -> None:
    """The plans for small images have a single block behind an embedding that pools early."""
    early: dict[str, Any] = {"name": "whitened", "num_halvings": 3, "early_pooling": True}
    model = {
        "name": "vit",
        "depth": 1,
        "pooling": "average",
        "positions": "none",
        "patch_embedding": {**early, "mirror_equivariant": True},
    }
    guide = make_guide(model, tmp_path, side=32)
    assert len(guide.steps) == 22
    assert re.search(r"9 patches, 1 block with \d+ attention heads\.", guide.html)
    assert "There is one block" in guide.html
    assert re.search(r"layers: \d+ filters of 24 . 3 . 3 in mirrored pairs, then", guide.html)
    assert "repeated" not in guide.html


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
    pixels = np.random.default_rng(3).integers(0, 256, (SIDE, SIDE, 3), np.uint8)
    subject = subject_of(ensemble, description, ImageToExplain("rose", pixels, pixels, "rose"))
    write_guide([subject], "flowers/3", tmp_path / "guide.html")
    html = (tmp_path / "guide.html").read_text(encoding="utf-8")
    assert "This model is an ensemble: the average of 2 networks" in html
    assert html.count('<section class="step"') == 4
    assert subject.attributions.occlusion_hw is not None


def test_the_class_token_s_rows_are_exact(guide: Guide) -> None:
    """They are those of the model to 1e-4, and each sums to 1."""
    values, _ = _values(guide)
    rows_LHN = np.array(guide.numbers["class_rows"])
    expected = np.stack([b.attention.weights_BHNN[0, :, 0].numpy() for b in values.blocks])
    np.testing.assert_allclose(rows_LHN, expected, atol=1e-4)
    np.testing.assert_allclose(rows_LHN.sum(axis=-1), 1, atol=1e-3)


def test_the_probabilities_are_calibrated_and_exact(guide: Guide) -> None:
    """What is stored and printed is the softmax of the logits over the temperature."""
    _, logits_BK = _values(guide)
    expected = torch.softmax(logits_BK[0] / 1.3, dim=0).numpy()
    np.testing.assert_allclose(guide.numbers["probabilities"], expected, atol=1e-4)
    assert f"{100 * expected.max():.2f}%" in guide.html


def test_the_journey_ends_with_the_answer(guide: Guide) -> None:
    """After each block, the model's own norm and head are applied to the class token."""
    values, _ = _values(guide)
    model: Any = guide.model
    with torch.inference_mode():
        logits = [model.head(model.norm(b.tokens_out_BND[:, 0]))[0] / 1.3 for b in values.blocks]
    expected = torch.softmax(torch.stack(logits), dim=1).numpy()
    np.testing.assert_allclose(guide.numbers["readouts"], expected, atol=1e-4)


def test_the_rollout_multiplies_the_blocks(guide: Guide) -> None:
    """It is the product of the averaged attention with residuals, in the order of the blocks."""
    values, _ = _values(guide)
    flow_NN = torch.eye(values.blocks[0].tokens_in_BND.shape[1])
    for block in values.blocks:
        mixed_NN = block.attention.weights_BHNN[0].mean(dim=0) / 2 + torch.eye(len(flow_NN)) / 2
        flow_NN = mixed_NN @ flow_NN
    np.testing.assert_allclose(guide.numbers["rollout"], flow_NN[0].numpy(), atol=1e-4)


def test_the_scores_are_those_of_the_shown_head(guide: Guide) -> None:
    """Each row lies between its own minimum and maximum, to 1/255."""
    values, _ = _values(guide)
    expected = values.blocks[0].attention.scores_BHNN[0, guide.numbers["head"]].numpy()
    step = np.ptp(expected, axis=-1, keepdims=True) / 255
    assert np.all(np.abs(rows_of(guide.numbers["scores"]) - expected) <= step)


def test_the_page_asks_nobody_for_anything(guide: Guide) -> None:
    """Every address is data or a place on the page, and every picture has a text beside it."""
    found = Addresses(guide.html)
    assert found.fetched
    assert {a for a in found.fetched if not a.startswith(("data:image/", "#"))} == set()
    assert found.unnamed == []
    assert not re.search(r"https?://|@import|fetch\(|XMLHttpRequest|WebSocket", guide.html)
    assert all(each.startswith("data:") for each in re.findall(r"url\(([^)]*)\)", guide.html))


def test_names_of_classes_are_text(guide: Guide) -> None:
    """A class may be called like an element; the page shows its name."""
    assert "<b>weed</b>" not in guide.html
    assert "&lt;b&gt;weed" in guide.html
    assert guide.numbers["classes"][3] == "<b>weed</b>"


def test_two_images_stand_side_by_side(tmp_path: Path) -> None:
    """What is the same for both is said once; the numbers are those of each."""
    guide = make_guide({"name": "vit", "depth": DEPTH}, tmp_path, images=2)
    first, second = guide.all_numbers
    assert first["probabilities"] != second["probabilities"]
    assert guide.html.count("principal components of the learned filters") == 1
    assert guide.html.count("Attention rollout") == 2
    assert len(guide.steps) == 22


def test_a_greyscale_image_gets_a_page(tmp_path: Path) -> None:
    """One channel, 8 by 8 pixels: as small as the digits."""
    guide = make_guide({"name": "vit", "depth": 1}, tmp_path, channels=1, side=8, label=None)
    assert guide.shapes["image"] == (1, 8, 8)
    assert "Its true label is not known here." in guide.html
    assert guide.numbers["true"] is None


def test_a_large_grid_stores_fewer_rows() -> None:
    """With 1,024 patches and 12 x 12 heads, every few rows and columns can be picked."""
    queries = stored_queries((32, 32), 1, (12, 12, 1025, 1025), 6_500_000)
    assert queries[0] == 0
    assert 25 <= len(queries) < 1025
    assert 12 * 12 * len(queries) * 1025 <= 6_500_000
    assert stored_queries((14, 14), 1, (12, 12, 197, 197), 6_500_000) == list(range(197))


def test_a_page_says_that_not_every_patch_can_be_picked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only where that is so."""
    sentence = "picking a patch shows the nearest of them"
    assert sentence not in make_guide({"name": "vit", "depth": 1}, tmp_path).html
    monkeypatch.setattr(page_data, "MOST_BYTES", 100)
    assert sentence in make_guide({"name": "vit", "depth": 1}, tmp_path).html


def test_masked_scores_can_be_stored() -> None:
    """A score of minus infinity becomes the row's minimum; the others keep their values."""
    rows = np.array([[-np.inf, 1.0, 3.0], [2.0, -np.inf, -2.0]])
    restored = unpack(pack(rows))
    np.testing.assert_allclose(restored, [[1, 1, 3], [2, -2, -2]], atol=0.02)
