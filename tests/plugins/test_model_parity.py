"""Every ViT of ours against a public implementation: same weights, same function, same gradients.

The public models' files in `tests/pipeline/models/pretrained` hold more variants of the plain ViT.

Shapes: B batch, K classes, N patches, D embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import partial
from typing import Any

import pytest
import timm
import torch
from timm.layers import RmsNorm
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from vit_pytorch import cct, simple_vit
from vit_pytorch.vit_for_small_dataset import ViT as SmallDataViT

from patchline.plugin_api import PatchTokens
from tests.plugins.model_parity import built, built_with, random_images, randomise

Tensors = dict[str, torch.Tensor]
Names = Callable[[Tensors], Tensors]
Case = tuple[nn.Module, nn.Module, Names, Tensors, int]
"""Ours, theirs, what gives their tensors our names, the weights of ours, and a side in pixels."""
_ROUNDING = 2e-6  # of the largest gradient: one of exactly zero, as of a bias before a softmax
_POSITIONS = "position_embedding.positions_1ND"


def _names(table: str) -> Mapping[str, str]:
    """Read what a library calls a part, and what we call it; applied in this order."""
    rows = (line.strip().partition(" ") for line in table.strip().splitlines())
    return {theirs: ours for theirs, _, ours in rows}


_TIMM = _names("""
    cls_token class_token.token_11D
    pos_embed position_embedding.positions_1ND
    patch_embed.proj. patch_embedding.projection.
    attn_pool.latent pooling.probe_11D
    attn_pool.q. pooling.query.
    attn_pool.kv. pooling.key_value.
    attn_pool. pooling.
    .norm1. .attention_norm.
    .norm2. .mlp_norm.
    .attn.q_norm. .attention.query_norm.
    .attn.k_norm. .attention.key_norm.
    .attn.qkv. .attention.query_key_value.
    .proj. .projection.
    .attn. .attention.
    .mlp.fc1. .mlp.expand.
    .mlp.fc2. .mlp.contract.
    .ls1.gamma .attention_scale.gain_D
    .ls2.gamma .mlp_scale.gain_D
    .gamma_1 .attention_scale.gain_D
    .gamma_2 .mlp_scale.gain_D
""")
_CCT = _names("""
    tokenizer.conv_layers.0.0. patch_embedding.projection.0.
    tokenizer.conv_layers.1.0. patch_embedding.projection.3.
    classifier.positional_emb position_embedding.positions_1ND
    classifier.attention_pool. pooling.importance.
    classifier.fc. head.
    classifier.
    .pre_norm. .attention_norm.
    .self_attn.qkv. .attention.query_key_value.
    .self_attn.proj. .attention.projection.
    .norm1. .stream_norm.
    .linear1. .mlp.expand.
    .linear2. .mlp.contract.
""")
_VIT_PYTORCH = _names("""
    to_patch_embedding. patch_embedding.tokenizer.
    pos_embedding position_embedding.positions_1ND
    cls_token class_token.token_11D
    transformer.layers. blocks.
    transformer.norm. norm.
    linear_head. head.
    mlp_head.0. norm.
    mlp_head.1. head.
    .0.norm. .attention_norm.
    .0.temperature .attention.log_sharpness
    .0.to_qkv. .attention.query_key_value.
    .0.to_out.0. .attention.projection.
    .0.to_out. .attention.projection.
    .1.net.0. .mlp_norm.
    .1.net.1. .mlp.expand.
    .1.net.3. .mlp.contract.
    .1.net.4. .mlp.contract.
""")


class ForeignTokens(nn.Module):
    """A patch embedding of another library behind our contract, for a grid of 8x8."""

    def __init__(self, tokenizer: nn.Module) -> None:
        super().__init__()
        self.tokenizer, self.grid = deepcopy(tokenizer), (8, 8)

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return the other library's tokens with the grid."""
        return PatchTokens(self.tokenizer(images_BCHW), self.grid)


def _renamed(names: Mapping[str, str], tensors: Tensors) -> Tensors:
    result = {}
    for name, tensor in tensors.items():
        ours = f".{name}"
        for theirs, own in names.items():
            ours = ours.replace(theirs, own)
        result[ours.removeprefix(".")] = tensor
    return result


def _values(model: nn.Module) -> Tensors:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _vit(own: dict[str, Any], **settings: Any) -> Case:
    shape: Any = {"img_size": 32, "patch_size": 4, "embed_dim": 128, "depth": 3, "num_heads": 4}
    theirs: Any = VisionTransformer(**shape, mlp_ratio=2, num_classes=5, **settings)
    ours, names = built("vit", size="mini", depth=3, **own), partial(_renamed, _TIMM)
    randomise(theirs)
    if own.get("positions") == "sine_cosine":  # a table of vit-pytorch as timm's positions
        table_ND = simple_vit.posemb_sincos_2d(8, 8, 128)
        front_PD = torch.zeros(theirs.num_prefix_tokens, 128)
        del theirs.pos_embed
        theirs.register_buffer("pos_embed", torch.cat([front_PD, table_ND])[None])
    return ours, theirs, names, names(_values(theirs)), 32


def _base() -> Case:
    """Return the first blocks of both in the published width: 224 pixels in patches of 16."""
    theirs: Any = timm.create_model("vit_base_patch16_224", pretrained=False, depth=2)
    randomise(theirs)
    ours = built("vit", 224, 1000, size="b", depth=2, embedding={"name": "conv", "patch_size": 16})
    names = partial(_renamed, _TIMM)
    return ours, theirs, names, names(_values(theirs)), 224


def _rope(architecture: str, *, absolute: bool = False) -> Case:
    theirs: Any = timm.create_model(architecture, pretrained=False, depth=2, img_size=64)
    randomise(theirs)
    embedding = {"name": "conv", "patch_size": 16}
    settings: dict[str, Any] = {
        "frequencies": "mixed" if "mixed" in architecture else "axial",
        "depth": 2,
    }
    settings |= {"embedding": embedding, "layer_scale": 1.0, "absolute_positions": absolute}

    def names(tensors: Tensors) -> Tensors:
        """Each block has its part of the frequencies; the class token has a position in ours."""
        ours = _renamed(_TIMM, tensors)
        if "rope.freqs" in ours:
            for block, frequencies_2HF in enumerate(ours.pop("rope.freqs").unbind(1)):
                ours[f"blocks.{block}.attention.frequencies_2HF"] = frequencies_2HF
        if absolute:  # the gradient of this position is that of the token itself
            ours[_POSITIONS] = torch.cat([ours["class_token.token_11D"], ours[_POSITIONS]], 1)
        return ours

    weights = names(_values(theirs))
    if absolute:
        weights[_POSITIONS][:, 0] = 0.0
    return built("rope_vit", 64, 1000, size="s", **settings), theirs, names, weights, 64


def _cct(positions: str, side: int, num_layers: int, kernel_size: int) -> Case:
    theirs = cct.cct_2(
        img_size=side,
        n_conv_layers=num_layers,
        kernel_size=kernel_size,
        num_classes=10,
        positional_embedding="learnable" if positions == "learned" else "none",
    )
    randomise(theirs)
    embedding = {"name": "cct", "num_layers": num_layers, "kernel_size": kernel_size}
    ours = built("cct", side, 10, size="2", positions=positions, embedding=embedding)
    names = partial(_renamed, _CCT)
    return ours, theirs, names, names(_values(theirs)), side


def _vit_pytorch(name: str, kind: Any) -> Case:
    size: Any = {"dim": 96, "depth": 4, "heads": 3, "mlp_dim": 192, "dim_head": 32}
    theirs = kind(image_size=32, patch_size=4, num_classes=10, **size)
    for part, module in theirs.named_modules():
        if isinstance(module, nn.LayerNorm) and not part.startswith("to_patch"):
            module.eps = 1e-6  # vit-pytorch leaves torch's 1e-5
    randomise(theirs)
    ours = built_with(
        name, lambda _: ForeignTokens(theirs.to_patch_embedding), num_classes=10, size="micro"
    )
    names = partial(_renamed, _VIT_PYTORCH)
    weights = names(_values(theirs))
    for each, parameter in ours.named_parameters():
        if each not in weights:  # biases that theirs lacks
            weights[each] = torch.zeros_like(parameter)
        elif each.endswith("log_sharpness"):  # theirs is the whole factor, ours what is learned
            weights[each] = weights[each] + math.log(math.sqrt(32))
    return ours, theirs, names, weights, 32


_PUBLISHED = "timm, Base at 224 pixels"
_AVERAGE: dict[str, Any] = {"class_token": False, "global_pool": "avg", "fc_norm": False}
_MAP: dict[str, Any] = {"class_token": False, "global_pool": "map"}
_TANH, _RMS = partial(nn.GELU, approximate="tanh"), partial(RmsNorm, eps=1e-6)
CASES: dict[str, Callable[[], Case]] = {
    "timm": partial(_vit, {}),
    _PUBLISHED: _base,
    "timm, average": partial(_vit, {"pooling": "average"}, **_AVERAGE),
    "timm, attention pooling": partial(
        _vit, {"pooling": "attention", "activation": "gelu_tanh"}, **_MAP, act_layer=_TANH
    ),
    "timm, gains": partial(_vit, {"layer_scale": 1e-5}, init_values=1e-5),
    "timm, no positions": partial(_vit, {"positions": "none"}, pos_embed="none"),
    "timm, norms of queries and keys": partial(
        _vit, {"norm": "rms_norm", "qk_norm": True}, norm_layer=_RMS, qk_norm=True
    ),
    "timm, sine-cosine": partial(_vit, {"positions": "sine_cosine"}),
    "timm, sine-cosine, average": partial(
        _vit, {"positions": "sine_cosine", "pooling": "average"}, **_AVERAGE
    ),
    "timm, axial": partial(_rope, "vit_small_patch16_rope_224"),
    "timm, mixed": partial(_rope, "vit_small_patch16_rope_mixed_224"),
    "timm, axial, absolute": partial(_rope, "vit_small_patch16_rope_ape_224", absolute=True),
    "timm, mixed, absolute": partial(_rope, "vit_small_patch16_rope_mixed_ape_224", absolute=True),
    "vit-pytorch, CCT": partial(_cct, "learned", 32, 2, 3),
    "vit-pytorch, CCT without positions": partial(_cct, "none", 64, 1, 7),
    "vit-pytorch, simple": partial(_vit_pytorch, "simple_vit", simple_vit.SimpleViT),
    "vit-pytorch, small data": partial(_vit_pytorch, "vit_small_data", SmallDataViT),
}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if case == _PUBLISHED else ()) for case in CASES],
)
def test_equals_the_public_model(case: str) -> None:
    """Logits agree to 1e-4, each gradient, also of the images, to 1e-3 of its largest entry."""
    ours, theirs, names, weights, side = CASES[case]()
    ours.load_state_dict({name: each.clone() for name, each in weights.items()}, assign=True)
    logits, gradients = [], []
    for model in (ours, theirs):
        model.eval().requires_grad_()
        images_BCHW = random_images(2, side).requires_grad_()
        logits_BK = model(images_BCHW)
        direction_BK = torch.randn(logits_BK.shape, generator=torch.Generator().manual_seed(5))
        (logits_BK * direction_BK).sum().backward()
        logits.append(logits_BK.detach())
        own = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
        gradients.append((own, torch.as_tensor(images_BCHW.grad)))
    assert float(logits[1].std()) > 0.1
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=0)
    found = {**gradients[0][0], "images": gradients[0][1]}
    expected = {**names(gradients[1][0]), "images": gradients[1][1]}
    assert float(expected["images"].abs().max()) > 1e-3
    assert len(expected) > len(found) / 2
    rounding = _ROUNDING * max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        allowed = 1e-3 * float(gradient.abs().max()) + rounding
        assert float((found[name] - gradient).abs().max()) <= allowed, name
