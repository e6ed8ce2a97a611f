"""The networks of the masked autoencoder (arXiv 2111.06377, section 3).

Shapes: B batch, C channels, H height, W width, N patches, V visible ones, P tokens before the
patches, M = P + V encoded tokens, D embedding of the model, E embedding of the decoder, Q values of
a patch (its height times its width times C).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from patchline.pipeline.models.layers.attention import MultiHeadSelfAttention
from patchline.pipeline.models.layers.encoder_block import EncoderBlock
from patchline.pipeline.models.layers.initialisation import xavier
from patchline.pipeline.models.layers.sine_cosine_positions import sine_cosine_positions
from patchline.plugin_api import ConfigError, Encoder, ImageSpec

_LARGEST_DECODER = 512
_HEAD_DIM = 32
_EPSILON = 1e-6


class MaskedAutoencoder(nn.Module):
    """Encode the visible patches, decode all: `images_BCHW -> losses_B`.

    The loss of an image is the mean squared error of its hidden patches. In evaluation mode, the
    same patches are hidden in all images.

    Args:
        model: the encoder.
        image: the format of its input.
        mask_ratio: the fraction of the patches that are hidden.
        normalized_pixels: reconstruct each patch relative to its own mean and standard deviation.
        decoder_dim: E; None for D, but at most 512.
        decoder_depth: number of encoder blocks in the decoder.
        decoder_heads: the number of attention heads in each of these blocks; None for one for every
            32 dimensions.

    Raises:
        ConfigError: if the model cannot hide patches, patches do not tile the image, or the heads
            do not divide the dimension.
    """

    def __init__(
        self,
        model: nn.Module,
        image: ImageSpec,
        *,
        mask_ratio: float,
        normalized_pixels: bool,
        decoder_dim: int | None,
        decoder_depth: int,
        decoder_heads: int | None,
    ) -> None:
        super().__init__()
        self.mask_ratio, self.normalized_pixels = mask_ratio, normalized_pixels
        embed_dim = _embed_dim(model, image)
        rows, columns = self.grid = _grid(model, image)
        self.patch_height, self.patch_width = image.height // rows, image.width // columns
        self.channels = image.channels
        self.model = model
        dim = decoder_dim or min(_LARGEST_DECODER, -(-embed_dim // 4) * 4)
        heads = decoder_heads or _default_heads(dim)
        if dim % heads:
            raise ConfigError(
                f"objective.decoder_heads {heads} does not divide objective.decoder_dim {dim}. "
                "Choose a divisor."
            )
        self.decoder_embedding = nn.Linear(embed_dim, dim)
        self.mask_token = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.normal_(self.mask_token, std=0.02)
        self.decoder_blocks = nn.ModuleList(
            EncoderBlock(MultiHeadSelfAttention(dim, heads), 4 * dim) for _ in range(decoder_depth)
        )
        self.decoder_norm = nn.LayerNorm(dim, eps=_EPSILON)
        self.prediction = nn.Linear(dim, self.patch_height * self.patch_width * self.channels)
        for part in (self.decoder_embedding, self.decoder_blocks, self.prediction):
            part.apply(xavier)

    def forward(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the loss of each image, in float32."""
        order_BN, visible = self._drawn(images_BCHW)
        predicted_BNQ = self._predicted(images_BCHW, order_BN, visible).float()
        target_BNQ, _, _ = self._target(images_BCHW)
        error_BN = (predicted_BNQ - target_BNQ).square().mean(dim=2)
        losses_B: torch.Tensor = error_BN.gather(1, order_BN[:, visible:]).mean(dim=1)
        return losses_B

    def reconstructed(self, images_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the images with black hidden patches, and with predicted ones: (B, C, H, W)."""
        order_BN, visible = self._drawn(images_BCHW)
        _, mean_BN1, std_BN1 = self._target(images_BCHW)
        predicted_BNQ = self._predicted(images_BCHW, order_BN, visible).float()
        predicted_BNQ = predicted_BNQ * std_BN1 + mean_BN1
        patches_BNQ, hidden_BN1 = self._patches(images_BCHW), self._hidden(order_BN, visible)
        darkest = images_BCHW.amin()
        shown_BNQ = torch.where(hidden_BN1, darkest, patches_BNQ)
        filled_BNQ = torch.where(hidden_BN1, predicted_BNQ, patches_BNQ)
        grid = self._grid_of(images_BCHW)
        return self._joined(shown_BNQ, grid), self._joined(filled_BNQ, grid)

    # -- which patches are visible -------------------------------------------------------------

    def _drawn(self, images_BCHW: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the patches of each image, visible ones first, and the number of these."""
        rows, columns = self._grid_of(images_BCHW)
        B, N, device = len(images_BCHW), rows * columns, images_BCHW.device
        hidden = min(N - 1, max(1, round(N * self.mask_ratio)))
        if self.training:
            return torch.rand(B, N, device=device).argsort(dim=1), N - hidden
        generator = torch.Generator().manual_seed(0)
        order_N = torch.randperm(N, generator=generator).to(device)
        return order_N.expand(B, -1), N - hidden

    @staticmethod
    def _hidden(order_BN: torch.Tensor, visible: int) -> torch.Tensor:
        """Return which patches are hidden, by their place: (B, N, 1)."""
        hidden_BN = torch.ones_like(order_BN, dtype=torch.bool)
        return hidden_BN.scatter(1, order_BN[:, :visible], value=False)[:, :, None]

    # -- encoder and decoder -------------------------------------------------------------------

    def _predicted(
        self, images_BCHW: torch.Tensor, order_BN: torch.Tensor, visible: int
    ) -> torch.Tensor:
        """Return the predictions for all patches, by their place: (B, N, Q)."""
        grid, places_BV = self._grid_of(images_BCHW), order_BN[:, :visible]
        # Without their pixels, hidden patches cannot leak through an overlapping embedding.
        hidden_BN1 = self._hidden(order_BN, visible)
        seen_BNQ = self._patches(images_BCHW).masked_fill(hidden_BN1, 0.0)
        encode: Any = self.model.encode
        encoded_BME = self.decoder_embedding(encode(self._joined(seen_BNQ, grid), places_BV))
        prefix = encoded_BME.shape[1] - visible
        B, N, E = *order_BN.shape, encoded_BME.shape[2]
        masked_BNE = self.mask_token.to(encoded_BME.dtype).expand(B, N, E)
        index_BVE = places_BV[:, :, None].expand(-1, -1, E)
        tokens_BNE = masked_BNE.scatter(1, index_BVE, encoded_BME[:, prefix:])
        positions_1NE = sine_cosine_positions(grid, E).to(tokens_BNE.device)
        tokens_BME = torch.cat([encoded_BME[:, :prefix], tokens_BNE + positions_1NE], dim=1)
        for block in self.decoder_blocks:
            tokens_BME = block(tokens_BME)
        predicted_BNQ: torch.Tensor = self.prediction(self.decoder_norm(tokens_BME[:, prefix:]))
        return predicted_BNQ

    def _target(self, images_BCHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what is predicted, and the mean and scale that were removed from it."""
        patches_BNQ = self._patches(images_BCHW)
        if not self.normalized_pixels:
            zero_BN1 = torch.zeros_like(patches_BNQ[:, :, :1])
            return patches_BNQ, zero_BN1, zero_BN1 + 1
        mean_BN1 = patches_BNQ.mean(dim=2, keepdim=True)
        values = patches_BNQ.shape[2]
        variance_BN1 = patches_BNQ.var(dim=2, keepdim=True, correction=min(1, values - 1))
        std_BN1 = (variance_BN1 + _EPSILON).sqrt()
        return (patches_BNQ - mean_BN1) / std_BN1, mean_BN1, std_BN1

    # -- images and patches --------------------------------------------------------------------

    def _grid_of(self, images_BCHW: torch.Tensor) -> tuple[int, int]:
        """Return rows and columns of the patches; training may use smaller images."""
        height, width = images_BCHW.shape[-2:]
        return height // self.patch_height, width // self.patch_width

    def _patches(self, images_BCHW: torch.Tensor) -> torch.Tensor:
        """Return the pixels of each patch, row by row: (B, N, Q)."""
        rows, columns = self._grid_of(images_BCHW)
        B, height, width = len(images_BCHW), self.patch_height, self.patch_width
        split = images_BCHW.reshape(B, self.channels, rows, height, columns, width)
        return split.permute(0, 2, 4, 3, 5, 1).reshape(B, rows * columns, -1)

    def _joined(self, patches_BNQ: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Return the images that consist of these patches: (B, C, H, W)."""
        (rows, columns), B = grid, len(patches_BNQ)
        height, width = self.patch_height, self.patch_width
        split = patches_BNQ.reshape(B, rows, columns, height, width, self.channels)
        split = split.permute(0, 5, 1, 3, 2, 4)
        return split.reshape(B, self.channels, rows * height, columns * width)


def _grid(model: nn.Module, image: ImageSpec) -> tuple[int, int]:
    """Return the grid of the model's patches, which has to tile the image."""
    embedding: Any = model.patch_embedding
    rows, columns = embedding.grid
    if image.height % rows or image.width % columns or rows * columns < 2:  # noqa: PLR2004 - one is visible
        raise ConfigError(
            "objective.name is mae, which needs at least two patches of equal size, but this model "
            f"divides the {image.height}x{image.width} image into a grid of {rows}x{columns}. "
            "Choose another model.patch_embedding or data.image_size."
        )
    return rows, columns


def _embed_dim(model: nn.Module, image: ImageSpec) -> int:
    """Return the dimension of the tokens that the model encodes."""
    if not isinstance(model, Encoder):
        raise ConfigError(
            "objective.name is mae, but this model cannot encode visible patches alone. Set "
            "model.name to vit, vit_registers, simple_vit, rope_vit, vit_small_data or cct, or "
            "objective.name to supervised."
        )
    device = next(model.parameters()).device
    example = torch.zeros(1, image.channels, image.height, image.width, device=device)
    was_training = model.training
    try:
        with torch.no_grad():
            return int(model.eval().encode(example).shape[2])
    finally:
        model.train(was_training)


def _default_heads(dim: int) -> int:
    return math.gcd(dim, max(1, dim // _HEAD_DIM))
