"""The first steps of the guide: from an image to one token for each patch."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from patchline.pipeline.evaluation.visual_guide import receptive_field
from patchline.pipeline.evaluation.visual_guide.pictures import (
    SIGNED,
    Picture,
    patches_uri,
    picture,
    png_uri,
    sheet_uri,
    tiled,
)
from patchline.pipeline.evaluation.visual_guide.story import Array, Shape, Step, Subject, shape_of

_FILTERS = 28
"""As many as in figure 7 of arXiv 2010.11929."""
_SEARCHED_BESIDE = 60
"""Components that are computed beside the shown ones, so that these are accurate."""


def embedding_steps(subject: Subject) -> list[Step]:
    """Return the steps from the image to the patches' tokens."""
    return [
        image_step(subject),
        _patches(subject),
        _flattening(subject),
        _projection(subject),
        _tokens(subject),
    ]


def example_step(subject: Subject) -> Step:
    """Return the step about the data: the photograph, its label, and the classes."""
    return subject.step("example", (subject.photo,))


def image_step(subject: Subject) -> Step:
    """Return the step about the image as the model gets it."""
    pixels, input_CHW = subject.traced.pixels, subject.traced.input_CHW
    height, width, _ = pixels.shape
    alt = f"The image at {height} by {width} pixels, as it enters the model"
    return subject.step(
        "image",
        (picture(pixels, "photo", alt, "What the model sees"),),
        (shape_of("image", input_CHW, "C × H × W"),),
        low=input_CHW.min(),
        high=input_CHW.max(),
    )


def _patches(subject: Subject) -> Step:
    rows, columns = subject.inside.grid
    pixels = subject.traced.pixels
    if subject.projection is None:
        return _no_patches(subject)
    *_, high, wide = subject.projection.weight_DCpq.shape
    cut = Picture(
        patches_uri(pixels, (rows, columns)),
        f"The image cut into {rows} rows of {columns} patches",
        f"{rows} × {columns} patches, read like a page: left to right, top to bottom",
        display="photo",
        width=pixels.shape[1],
        height=pixels.shape[0],
        live="cut",
    )
    return subject.step(
        "patches",
        (cut,),
        (
            Shape(
                "patches",
                (rows * columns, high, wide, pixels.shape[2]),
                "n × p × p × C",
            ),
        ),
    )


def _no_patches(subject: Subject) -> Step:
    pixels = subject.traced.pixels
    height, width, channels = pixels.shape
    field = receptive_field.measure(
        subject.model.get_submodule("patch_embedding"), height, width, channels
    )
    high, wide = field.size
    least = "at least " if field.is_cut else ""
    influence = np.sqrt(field.influence_HW)[..., None]
    lit = (np.broadcast_to(pixels, (*pixels.shape[:2], 3)) * (0.15 + 0.85 * influence)).astype(
        np.uint8
    )
    figure = picture(
        lit,
        "photo",
        f"The image, lit where the token in the middle looks: {least}{high} by {wide} pixels",
        "Lit: the pixels that the token in the middle depends on",
    )
    return subject.step("patches", (figure,), applies=False, field=field)


def _flattening(subject: Subject) -> Step:
    projection = subject.projection
    if projection is None:
        return subject.step("flattening", applies=False)
    patch = int(projection.flat_nP.std(dim=1).argmax())  # the one with the most to see
    flat_P = projection.flat_nP[patch].numpy()
    return subject.step(
        "flattening",
        (
            picture(
                flat_P[None],
                "strip",
                f"The {len(flat_P)} values of patch {patch + 1} in one row",
                f"Patch {patch + 1}: blue is below the mean of the training images, orange above",
                "flat",
            ),
        ),
        (
            shape_of("xₚ", projection.flat_nP[patch], "p² C"),
            shape_of("all patches", projection.flat_nP, "n × p² C"),
        ),
        patch=patch,
    )


def _projection(subject: Subject) -> Step:
    projection = subject.projection
    if projection is None:
        return _convolutions(subject)
    weight_DCpq = projection.weight_DCpq
    embed_dim, _, high, wide = weight_DCpq.shape
    components = _components(weight_DCpq)
    return subject.step(
        "projection",
        (
            Picture(
                _filters_uri(components),
                f"The first {len(components)} principal components of the learned filters",
                f"First {len(components)} principal components of the {embed_dim} filters",
                width=7 * (wide + 1) - 1,
                height=-(-len(components) // 7) * (high + 1) - 1,
            ),
        ),
        (
            Shape("E", (weight_DCpq[0].numel(), embed_dim), "p² C × D"),
            shape_of("as a convolution", weight_DCpq, "D × C × p × p"),
        ),
        components=components,
    )


def _convolutions(subject: Subject) -> Step:
    """Return the step of an embedding that is not one linear map."""
    inside = subject.inside
    layers = [
        _filters(module)
        for module in subject.model.get_submodule("patch_embedding").modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    ]
    maps_Dhw = inside.patch_tokens.T.reshape(-1, *inside.grid)[:_FILTERS].numpy()
    limits = np.maximum(np.abs(maps_Dhw).max(axis=(1, 2), keepdims=True), 1e-12)
    sheet = tiled(maps_Dhw / (2 * limits) + 0.5, 7)
    return subject.step(
        "projection",
        (
            Picture(
                sheet_uri(sheet, SIGNED),
                f"The first {len(maps_Dhw)} numbers of the tokens, each as a map of the image",
                "Orange is positive, blue negative; each map is scaled to its own maximum",
                width=sheet.shape[1],
                height=sheet.shape[0],
            ),
        ),
        (shape_of("feature map", inside.patch_tokens.T.reshape(-1, *inside.grid), "D × h × w"),),
        applies=False,
        layers=layers,
        maps=maps_Dhw,
    )


def _filters(layer: nn.Conv2d | nn.Linear) -> str:
    """Describe the filters of a layer, which may use each of its weights twice."""
    count = layer.out_channels if isinstance(layer, nn.Conv2d) else layer.out_features
    mirrored = " in mirrored pairs" if count > len(layer.weight) else ""
    return f"{count} filters of {' × '.join(map(str, layer.weight.shape[1:]))}{mirrored}"


def _components(weight_DCpq: torch.Tensor) -> Array:
    """Return the first principal components of the filters, scaled from 0 to 1: (k, p, p, C)."""
    centred = weight_DCpq.flatten(1) - weight_DCpq.flatten(1).mean(dim=0)
    count = min(_FILTERS, *centred.shape)
    searched = min(count + _SEARCHED_BESIDE, *centred.shape)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        # A whole SVD takes seconds for the 768 x 768 numbers of a ViT-B/16.
        _, _, directions_Pk = torch.svd_lowrank(centred, q=searched, niter=10)
    directions = directions_Pk[:, :count].T
    kCpq = directions.reshape(count, *weight_DCpq.shape[1:])
    largest = kCpq.abs().amax(dim=(1, 2, 3), keepdim=True)
    scaled: Array = (0.5 + 0.5 * kCpq / largest).permute(0, 2, 3, 1).numpy()
    return scaled


def _filters_uri(components_kpqC: Array) -> str:
    rgb = np.broadcast_to(components_kpqC, (*components_kpqC.shape[:3], 3))
    sheet = tiled(rgb, 7)
    alpha = np.where(np.isnan(sheet[..., :1]), 0, 255)
    return png_uri(np.concatenate([np.nan_to_num(sheet) * 255, alpha], axis=-1).astype(np.uint8))


def matrix_picture(subject: Subject, tokens: torch.Tensor, what: str) -> Picture:
    """Return the picture of a matrix with one row for each token."""
    rows, columns = tokens.shape
    return picture(
        tokens.numpy(),
        "matrix",
        f"{what}: a matrix of {rows} rows and {columns} columns",
        f"{rows} rows, one for each {'token' if rows > subject.inside.num_patches else 'patch'}; "
        f"{columns} columns. Blue is negative, orange positive",
    )


def _tokens(subject: Subject) -> Step:
    tokens_nD = subject.inside.patch_tokens
    return subject.step(
        "tokens",
        (matrix_picture(subject, tokens_nD, "The patches' tokens"),),
        (shape_of("tokens", tokens_nD, "n × D"),),
    )
