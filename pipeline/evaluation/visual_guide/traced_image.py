"""What a trained model computes for one image: every value that the visual guide shows.

Shapes: C channels, H height, W width, N tokens, n patches among them, P tokens before the patches
(class token, registers), D embedding, K classes, L layers, A attention heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.models.calibrated_models import Ensemble, class_probabilities
from patchline.pipeline.models.inference import normalize
from patchline.pipeline.models.layers.class_token import ClassToken
from patchline.pipeline.models.layers.intermediate_values import BlockValues, record_values
from patchline.pipeline.models.layers.registers import RegisterTokens
from patchline.pipeline.models.model_description import ModelDescription
from patchline.plugin_api import PatchTokens

Array = np.ndarray[Any, Any]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]

_READOUT_TOLERANCE = 1e-3


@dataclass(frozen=True)
class TracedTransformer:
    """The values inside a Transformer whose layers come from `patchline.pipeline.models.layers`."""

    grid: tuple[int, int]
    """Rows and columns of the patches."""
    patch_tokens: torch.Tensor
    """The output of the patch embedding, (n, D)."""
    parts: Mapping[str, torch.Tensor]
    """The outputs of the model's direct parts and of those of its first block, by name."""
    blocks: tuple[BlockValues, ...]
    """B is 1, or 2 with a test-time flip: the image, then its mirror image."""
    prefix: tuple[str, ...]
    """Names of the P tokens before the patches."""
    readouts_LK: Array | None
    """The probabilities if the model ended after each layer; None if they cannot be computed."""

    @property
    def num_tokens(self) -> int:
        """How many tokens there are, N."""
        return int(self.blocks[0].tokens_in_BND.shape[1])

    @property
    def num_patches(self) -> int:
        """How many patches there are, n."""
        return self.grid[0] * self.grid[1]

    @property
    def num_heads(self) -> int:
        """How many heads each block has, A."""
        return int(self.blocks[0].attention.weights_BHNN.shape[1])

    @property
    def num_registers(self) -> int:
        """How many of the tokens before the patches are registers."""
        return sum(name.startswith("register") for name in self.prefix)

    def attention(self) -> Array:
        """Return all attention weights, float32 (L, A, N, N)."""
        return np.stack([block.attention.weights_BHNN[0].numpy() for block in self.blocks])

    def token_name(self, token: int) -> str:
        """Return how the page calls a token: `class token`, `patch 17`."""
        P = len(self.prefix)
        return self.prefix[token] if token < P else f"patch {token - P + 1}"


@dataclass(frozen=True)
class TracedImage:
    """What a model computed for one image."""

    pixels: Pixels
    """The image as it enters the model, uint8 (H, W, C)."""
    input_CHW: torch.Tensor
    """The same image, normalised."""
    logits_K: Array
    probabilities_K: Array
    """Calibrated probabilities: the softmax of the logits divided by the temperature; of a
    multi-label model, the sigmoid of each scaled and shifted logit."""
    transformer: TracedTransformer | None
    """The inner values of a transformer; None for a model whose inside is not known here."""
    why_closed: str = ""
    """Why there is no `transformer`, as a sentence."""

    @property
    def predicted(self) -> int:
        """Number of the most probable class."""
        return int(self.probabilities_K.argmax())


@dataclass
class _Recording:
    patches: PatchTokens | None = None
    parts: dict[str, torch.Tensor] = field(default_factory=dict)


def trace(model: nn.Module, description: ModelDescription, pixels: Pixels) -> TracedImage:
    """Run a model on one image, uint8 (H, W, C), and return what it computed on the way."""
    images_BHWC = torch.from_numpy(np.ascontiguousarray(pixels)[None])
    images_BCHW = normalize(images_BHWC, description.image)
    why = _why_closed(model)
    transformer = None
    with torch.inference_mode():
        if why:
            logits_BK = model(images_BCHW)
        else:
            logits_BK, transformer = _trace(model, images_BCHW, description)
            why = "" if transformer else "Its tokens are not one sequence of patches of the image."
    logits_K = logits_BK[0].float()
    probabilities_K = class_probabilities(logits_K, description.logit_calibration)
    return TracedImage(
        pixels=pixels,
        input_CHW=images_BCHW[0],
        logits_K=logits_K.numpy(),
        probabilities_K=probabilities_K.numpy(),
        transformer=transformer,
        why_closed=why,
    )


def _why_closed(model: nn.Module) -> str:
    """Return why the inside of a model cannot be shown; empty if it can."""
    if isinstance(model, Ensemble):
        return (
            f"This model is an ensemble: the average of {len(model.members)} networks, each with "
            "its own layers."
        )
    try:
        with record_values(model):
            pass
    except ValueError:
        return (
            f"Patchline did not build the layers of this model ({type(model).__name__}), so it "
            "cannot look at the values between them."
        )
    if not isinstance(getattr(model, "patch_embedding", None), nn.Module):
        return f"{type(model).__name__} has no part called patch_embedding."
    return ""


def _trace(
    model: nn.Module, images_BCHW: torch.Tensor, description: ModelDescription
) -> tuple[torch.Tensor, TracedTransformer | None]:
    with record_values(model) as values, _parts_recorded(model) as recording:
        logits_BK: torch.Tensor = model(images_BCHW)
    blocks, patches = tuple(values.blocks), recording.patches
    if patches is None or not blocks:
        return logits_BK, None
    rows, columns = patches.grid
    lengths = {block.tokens_in_BND.shape[1] for block in blocks}
    heads = {block.attention.weights_BHNN.shape for block in blocks}
    prefix_tokens = min(lengths) - rows * columns
    if len(lengths) > 1 or len(heads) > 1 or prefix_tokens < 0:
        return logits_BK, None
    traced = TracedTransformer(
        grid=patches.grid,
        patch_tokens=patches.tokens_BND[0],
        parts={  # of the image itself, or of all its views if they are averaged
            name: output.mean(0) if name == "pooling" else output[0]
            for name, output in recording.parts.items()
        },
        blocks=blocks,
        prefix=_prefix_names(model, prefix_tokens),
        readouts_LK=_readouts(model, blocks, logits_BK, description),
    )
    return logits_BK, traced


def _prefix_names(model: nn.Module, prefix_tokens: int) -> tuple[str, ...]:
    parts = [type(module) for module in model.modules()]
    names = ["class token"] if ClassToken in parts and prefix_tokens else []
    kind = "register" if RegisterTokens in parts else "extra token"
    others = prefix_tokens - len(names)
    return (*names, *(f"{kind} {number}" for number in range(1, others + 1)))


@contextmanager
def _parts_recorded(model: nn.Module) -> Iterator[_Recording]:
    """Record the outputs of a model's direct parts, and of those of its first block."""
    recording = _Recording()

    def keep(name: str, output: object) -> None:
        if isinstance(output, PatchTokens):
            recording.patches = output
        elif isinstance(output, torch.Tensor):
            recording.parts[name] = output

    watched = dict(model.named_children())
    blocks = watched.get("blocks")
    if isinstance(blocks, nn.ModuleList) and len(blocks):
        first = dict(blocks[0].named_modules())
        watched |= {f"block.{name}": module for name, module in first.items() if name}
    handles = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: keep(name, output))
        for name, module in watched.items()
    ]
    try:
        yield recording
    finally:
        for handle in handles:
            handle.remove()


def _readouts(
    model: nn.Module,
    blocks: tuple[BlockValues, ...],
    logits_BK: torch.Tensor,
    description: ModelDescription,
) -> Array | None:
    """Return the probabilities after each layer, through the model's own norm, pooling and head."""
    ends = [getattr(model, name, None) for name in ("norm", "pooling", "head")]
    if not all(isinstance(end, nn.Module) for end in ends):
        return None
    norm, pooling, head = (end for end in ends if isinstance(end, nn.Module))
    pooled: torch.Tensor = pooling(norm(torch.cat([block.tokens_out_BND for block in blocks])))
    if len(pooled) % len(blocks):
        return None
    views_LVD = pooled.reshape(len(blocks), -1, *pooled.shape[1:])
    outputs_LK: torch.Tensor = head(views_LVD.mean(1))
    if outputs_LK.shape != (len(blocks), logits_BK.shape[1]):
        return None
    if not torch.allclose(outputs_LK[-1], logits_BK[0], atol=_READOUT_TOLERANCE, rtol=1e-3):
        return None  # the model ends in another way
    readouts: Array = class_probabilities(outputs_LK, description.logit_calibration).numpy()
    return readouts


_TOLERANCE = 1e-3


class PatchProjection(NamedTuple):
    """Patch i becomes `weight_DCpq` times its pixels, plus `bias_D`."""

    weight_DCpq: torch.Tensor
    bias_D: torch.Tensor
    flat_nP: torch.Tensor
    """The flattened patches of the image, row by row; P = C p q."""


def projection_of(
    embedding: nn.Module, input_CHW: torch.Tensor, tokens_nD: torch.Tensor, grid: tuple[int, int]
) -> PatchProjection | None:
    """Return the linear map from separate patches to tokens, if the embedding is such a map."""
    channels, height, width = input_CHW.shape
    rows, columns = grid
    if height % rows or width % columns:
        return None
    size = (height // rows, width // columns)
    flat_nP = functional.unfold(input_CHW[None], size, stride=size)[0].T
    embed_dim = tokens_nD.shape[1]
    for weight, bias in _candidates(embedding, size):
        if weight.numel() != embed_dim * channels * size[0] * size[1]:
            continue
        weight_DCpq = weight.detach().reshape(embed_dim, channels, *size)
        bias_D = torch.zeros(embed_dim) if bias is None else bias.detach()
        found_nD = flat_nP @ weight_DCpq.flatten(1).T + bias_D
        if torch.allclose(found_nD, tokens_nD, atol=_TOLERANCE, rtol=_TOLERANCE):
            return PatchProjection(weight_DCpq, bias_D, flat_nP)
    return None


def _candidates(
    embedding: nn.Module, size: tuple[int, int]
) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
    for module in embedding.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            yield module.weight, module.bias
    resized: Any = getattr(embedding, "resized_kernel", None)  # FlexiViT stores another size
    if resized is not None:
        bias: Any = getattr(embedding, "bias", None)
        yield resized(size[0]), bias
