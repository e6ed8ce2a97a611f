"""Hold a model of ours against a public implementation: same weights, same function.

Every weight of the public model is drawn at random, gains and positions too, so that nothing hides
behind zeros and ones. Its tensors get our names; the same renaming then serves its gradients.

Shapes: B batch, C channels, H height, W width, N patches, D embedding, K classes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import nn

from patchline.pipeline.config import ModelChoice
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.plugin_system.plugin_loader import load_model
from patchline.plugin_api import DataTraits, ImageSpec, ModelContext, PatchTokens

Tensors = dict[str, torch.Tensor]

_ROUNDING = 2e-6  # of the largest gradient: one of exactly zero, as of a bias before a softmax
TIMM_NAMES = {
    "cls_token": "class_token.token_11D",
    "pos_embed": "position_embedding.positions_1ND",
    "patch_embed.proj.": "patch_embedding.projection.",
    "attn_pool.latent": "pooling.probe_11D",
    "attn_pool.q.": "pooling.query.",
    "attn_pool.kv.": "pooling.key_value.",
    "attn_pool.": "pooling.",
    ".norm1.": ".attention_norm.",
    ".norm2.": ".mlp_norm.",
    ".attn.q_norm.": ".attention.query_norm.",
    ".attn.k_norm.": ".attention.key_norm.",
    ".attn.qkv.": ".attention.query_key_value.",
    ".proj.": ".projection.",
    ".attn.": ".attention.",
    ".mlp.fc1.": ".mlp.expand.",
    ".mlp.fc2.": ".mlp.contract.",
    ".ls1.gamma": ".attention_scale.gain_D",
    ".ls2.gamma": ".mlp_scale.gain_D",
    ".gamma_1": ".attention_scale.gain_D",
    ".gamma_2": ".mlp_scale.gain_D",
}
"""What timm's Transformers call a part, and what we call it; applied in this order."""


class ForeignTokens(nn.Module):
    """A patch embedding of another library behind our contract: `images_BCHW -> tokens_BND`."""

    def __init__(self, tokenizer: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.grid = grid

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return the other library's tokens with the grid."""
        return PatchTokens(self.tokenizer(images_BCHW), self.grid)


class AnyGrid(nn.Module):
    """Patches of images of any size, whose grid may differ from the one it was built for."""

    def __init__(self, embed_dim: int, grid: tuple[int, int], patch_size: int = 4) -> None:
        super().__init__()
        self.grid = grid
        self.projection = nn.Conv2d(3, embed_dim, patch_size, patch_size)

    def forward(self, images_BCHW: torch.Tensor) -> PatchTokens:
        """Return one token for each patch, and the grid of these images."""
        features_BDhw = self.projection(images_BCHW)
        rows, columns = features_BDhw.shape[2:]
        return PatchTokens(features_BDhw.flatten(2).transpose(1, 2), (rows, columns))


def image_spec(height: int = 32, width: int | None = None, channels: int = 3) -> ImageSpec:
    """Return what a model is fed: square unless a width is given."""
    return ImageSpec.model_validate(
        {
            "channels": channels,
            "height": height,
            "width": width or height,
            "mean": (0.5,) * channels,
            "std": (0.25,) * channels,
            "resize": "crop",
        }
    )


def traits(height: int = 32, width: int | None = None, channels: int = 3) -> DataTraits:
    """Return what is known about data of 5 classes: square images unless a width is given."""
    return DataTraits(channels, height, width or height, num_classes=5, mirror_symmetric=True)


def built(
    name: str, side: int = 32, num_classes: int = 5, *, embedding: Any = None, **settings: Any
) -> Any:
    """Build an installed model for square RGB images, from a seed, with its patch embedding."""
    torch.manual_seed(0)
    choice = {"name": name, "patch_embedding": embedding or {"name": "auto"}, **settings}
    return build_model(ModelChoice.model_validate(choice), image_spec(side), num_classes).eval()


def without_weights(build: Callable[[], nn.Module]) -> Any:
    """Build a large model without the time to initialise it; its parameters hold anything."""
    with torch.device("meta"):
        model = build()
    assert not list(model.buffers())
    return model.to_empty(device="cpu")


def built_with(
    name: str, tokens: Callable[[int], nn.Module], num_classes: int = 5, **settings: Any
) -> Any:
    """Build an installed model on a patch embedding that is no plugin."""
    torch.manual_seed(0)
    plugin = load_model(name)
    context = ModelContext(image_spec(), num_classes, tokens)
    return plugin.build(plugin.config_class.model_validate(settings), context).eval()


def parameters_of(model: nn.Module) -> int:
    """Return how many numbers a model learns."""
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def randomise(model: nn.Module) -> None:
    """Draw every parameter: matrices that keep a signal's size, gains near 1, other things small.

    Frequencies of rotary positions and temperatures are drawn around what they are.
    """
    generator = torch.Generator().manual_seed(11)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith(("freqs", "temperature")):
            parameter.add_(noise, alpha=0.1)
        elif name.endswith("bias"):
            parameter.copy_(0.2 * noise)
        elif parameter.ndim == 1:
            parameter.copy_(1 + 0.2 * noise)
        elif name.endswith("weight"):
            parameter.copy_(noise * parameter[0].numel() ** -0.5)
        else:
            parameter.copy_(0.5 * noise)


def renamed(tensors: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> Tensors:
    """Return the tensors with every part of a name replaced by ours, in the order of `names`."""
    result = {}
    for name, tensor in tensors.items():
        ours = f".{name}"
        for theirs, own in names.items():
            ours = ours.replace(theirs, own)
        result[ours.removeprefix(".")] = tensor
    return result


def with_joined_projections(tensors: Tensors) -> Tensors:
    """Concatenate the queries, keys and values that transformers keeps apart."""
    joined = dict(tensors)
    for name in tensors:
        if ".q_proj." in name:
            parts = [joined.pop(name.replace(".q_", f".{which}_")) for which in "qkv"]
            joined[name.replace("q_proj", "query_key_value")] = torch.cat(parts)
    return joined


def timm_names(tensors: Tensors) -> Tensors:
    """Give the tensors of one of timm's Transformers our names."""
    return renamed(tensors, TIMM_NAMES)


def values_of(model: nn.Module) -> Tensors:
    """Return the parameters of a model by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def gradients_of(model: nn.Module) -> Tensors:
    """Return the gradients of a model by name; what got none is left out."""
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@torch.no_grad()
def load(ours: nn.Module, weights: Tensors, zeroed: Collection[str] = ()) -> None:
    """Give our model the weights; those that the other model lacks become zero.

    Args:
        ours: our model.
        weights: by our names, all of them that do not end in one of `zeroed`.
        zeroed: ends of names.
    """
    lacking = {name for name, _ in ours.named_parameters() if name.endswith(tuple(zeroed))}
    state = {name: tensor.clone() for name, tensor in weights.items()}
    state |= {name: torch.zeros_like(ours.get_parameter(name)) for name in lacking}
    assert not lacking & weights.keys()
    ours.load_state_dict(state, assign=True)


def assert_same_function(
    ours: nn.Module,
    theirs: nn.Module,
    gradients: Callable[[Tensors], Tensors],
    images_BCHW: torch.Tensor,
) -> None:
    """Compare logits to 1e-4 and gradients to 1e-3 of the largest entry of each.

    Args:
        ours: our model, already with their weights.
        theirs: a model that maps images to logits.
        gradients: gives their gradients our names; all that it returns are compared.
        images_BCHW: the images; the gradient towards them is compared as well.
    """
    logits, image_gradients = [], []
    direction_BK = None
    for model in (ours, theirs):
        model.eval().requires_grad_()
        leaf_BCHW = images_BCHW.clone().requires_grad_()
        logits_BK = model(leaf_BCHW)
        if direction_BK is None:
            direction_BK = torch.randn(logits_BK.shape, generator=torch.Generator().manual_seed(5))
        (logits_BK * direction_BK).sum().backward()
        logits.append(logits_BK.detach())
        image_gradients.append(torch.as_tensor(leaf_BCHW.grad))
    assert float(logits[1].std()) > 0.1
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=0)
    found = {**gradients_of(ours), "images": image_gradients[0]}
    expected = {**gradients(gradients_of(theirs)), "images": image_gradients[1]}
    assert float(expected["images"].abs().max()) > 1e-3
    assert len(expected) > len(found) / 2
    rounding = _ROUNDING * max(float(gradient.abs().max()) for gradient in expected.values())
    for name, gradient in expected.items():
        allowed = 1e-3 * float(gradient.abs().max()) + rounding
        assert float((found[name] - gradient).abs().max()) <= allowed, name


def assert_parity(
    ours: nn.Module,
    theirs: nn.Module,
    names: Callable[[Tensors], Tensors],
    images: tuple[int, int],
    *,
    zeroed: Collection[str] = (),
    weights: Tensors | None = None,
) -> None:
    """Give our model the weights of theirs, and compare logits and gradients.

    Args:
        ours: our model.
        theirs: a model that maps images to logits.
        names: gives their weights and gradients our names.
        images: how many random ones, and their side.
        zeroed: ends of our names that theirs lacks.
        weights: those of ours, if they are not just the renamed ones of theirs.
    """
    load(ours, weights or names(values_of(theirs)), zeroed)
    assert_same_function(ours, theirs, names, random_images(*images))


def random_images(batch: int, side: int, seed: int = 7) -> torch.Tensor:
    """Return normal noise in the shape of square RGB images, (B, 3, H, W)."""
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed))
