"""The first half of the guide: from an image to the sequence that enters the Transformer."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pipeline.layers.learned_positions import LearnedPositionEmbedding
from pipeline.layers.rotary_attention import RotarySelfAttention, grid_positions
from pipeline.layers.sine_cosine_positions import SineCosinePositionEmbedding
from pipeline.visual_guide import receptive_field
from pipeline.visual_guide.pictures import (
    SIGNED,
    Picture,
    matrix_uri,
    patches_uri,
    photo_uri,
    png_uri,
    sheet_uri,
    tiled,
)
from pipeline.visual_guide.story import Array, Shape, Step, Subject, shape_of

_FILTERS = 28
"""As many as in figure 7 of arXiv 2010.11929."""
_MOST_MAPS = 14
"""Maps of positions along a side, at most."""
_NAMED_CLASSES = 12


def embedding_steps(subject: Subject) -> list[Step]:
    """Return the steps up to the input of the first block."""
    return [
        image_step(subject),
        _patches(subject),
        _flattening(subject),
        _projection(subject),
        _tokens(subject),
        _class_token(subject),
        _positions(subject),
        _input(subject),
    ]


def example_step(subject: Subject) -> Step:
    """Return the step about the data: the photograph, its label, and the classes."""
    classes = subject.description.classes
    listed = ", ".join(classes[:_NAMED_CLASSES])
    more = f" and {len(classes) - _NAMED_CLASSES} more" if len(classes) > _NAMED_CLASSES else ""
    truth = (
        "Its true label is not known here."
        if subject.true_label is None
        else f"Its true label is “{classes[subject.true_label]}”."
    )
    return Step(
        "example",
        "An image and its label",
        (
            f"This is {subject.name}. {truth}",
            (
                f"The model has learned from labelled examples to tell {len(classes)} classes apart: "
                f"{listed}{more}."
            ),
        ),
        (subject.photo,),
    )


def image_step(subject: Subject) -> Step:
    """Return the step about the image as the model gets it."""
    pixels, image = subject.traced.pixels, subject.description.image
    height, width, channels = pixels.shape
    colours = "one grey value" if channels == 1 else "three values, red, green and blue"
    resized = {
        "crop": "scaled and cropped",
        "squash": "scaled without keeping its proportions",
    }[image.resize]
    low, high = float(subject.traced.input_CHW.min()), float(subject.traced.input_CHW.max())
    return Step(
        "image",
        "The image becomes numbers",
        (
            (
                f"The image is {resized} to {height} × {width} pixels. Each pixel is {colours} from 0 "
                "to 255."
            ),
            (
                "From each value the mean of the training images is subtracted, and the result is "
                f"divided by their standard deviation. This image now ranges from {low:.2f} to "
                f"{high:.2f}."
            ),
        ),
        (
            Picture(
                photo_uri(pixels),
                f"The image at {height} by {width} pixels, as it enters the model",
                "What the model sees",
                look="photo",
                width=width,
                height=height,
            ),
        ),
        (shape_of("x", subject.traced.input_CHW, "C × H × W"),),
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
        look="photo",
        width=pixels.shape[1],
        height=pixels.shape[0],
        live="cut",
    )
    return Step(
        "patches",
        "The image is cut into patches",
        (
            (
                f"A Transformer reads a sequence, as of words. Here, a word is a patch of {high} × "
                f"{wide} pixels: {rows * columns} of them, numbered from the top left."
            ),
        ),
        (cut,),
        (
            Shape(
                "patches",
                (rows * columns, high, wide, pixels.shape[2]),
                "n × p × p × C",
            ),
        ),
        views=("patches",),
    )


def _no_patches(subject: Subject) -> Step:
    rows, columns = subject.inside.grid
    pixels = subject.traced.pixels
    height, width, channels = pixels.shape
    field = receptive_field.measure(
        subject.model.get_submodule("patch_embedding"), height, width, channels
    )
    high, wide = field.size
    least = "at least " if field.is_cut else ""
    seen = np.sqrt(field.influence_HW)[..., None]
    lit = (np.broadcast_to(pixels, (*pixels.shape[:2], 3)) * (0.15 + 0.85 * seen)).astype(np.uint8)
    figure = Picture(
        photo_uri(lit),
        f"The image, lit where the token in the middle looks: {least}{high} by {wide} pixels",
        "Lit: the pixels that the token in the middle depends on",
        look="photo",
        width=pixels.shape[1],
        height=pixels.shape[0],
    )
    return Step(
        "patches",
        "The image is not cut into separate patches",
        (
            (
                f"This model's patch embedding reads areas of {least}{high} × {wide} pixels, which "
                f"overlap. It still makes one token for each place of a grid of {rows} × {columns}, "
                "numbered from the top left."
            ),
            "From here on, “patch” means such a place.",
        ),
        (figure,),
        applies=False,
    )


def _flattening(subject: Subject) -> Step:
    projection = subject.projection
    if projection is None:
        return Step(
            "flattening",
            "No patch is flattened",
            ("The layers of the patch embedding read the image's pixels where they are.",),
            applies=False,
        )
    patch = _shown_patch(subject)
    flat_P = projection.flat_nP[patch].numpy()
    channels = projection.weight_DCpq.shape[1]
    return Step(
        "flattening",
        "A patch becomes a row of numbers",
        (
            (
                f"The values of a patch are written in one row, one channel after the other. Patch "
                f"{patch + 1} becomes these {len(flat_P)} numbers."
            ),
        ),
        (
            Picture(
                matrix_uri(flat_P[None]),
                f"The {len(flat_P)} values of patch {patch + 1} in one row",
                f"Patch {patch + 1}: blue is below the mean of the training images, orange above",
                look="strip",
                width=len(flat_P),
                live="flat",
            ),
        ),
        (
            shape_of("xₚ", projection.flat_nP[patch], "p² C"),
            shape_of("all patches", projection.flat_nP, "n × p² C"),
        )
        if channels
        else (),
    )


def _shown_patch(subject: Subject) -> int:
    """Return the patch that is shown first: the one with the most to see."""
    assert subject.projection is not None
    return int(subject.projection.flat_nP.std(dim=1).argmax())


def _projection(subject: Subject) -> Step:
    projection = subject.projection
    if projection is None:
        kinds = [
            f"{type(module).__name__} {tuple(module.weight.shape)}"
            for module in subject.model.get_submodule("patch_embedding").modules()
            if isinstance(module, nn.Conv2d | nn.Linear)
        ]
        listed = ", then ".join(kinds[:4]) + (f", and {len(kinds) - 4} more" * (len(kinds) > 4))
        return Step(
            "projection",
            "Convolutions instead of one linear projection",
            (
                (
                    "The tokens are not one linear map of flattened patches. They are computed by: "
                    f"{listed or 'layers of its own'}."
                ),
            ),
            (_matrix(subject, subject.inside.patch_tokens, "tokens"),),
            (shape_of("tokens", subject.inside.patch_tokens, "n × D"),),
            applies=False,
        )
    weight_DCpq = projection.weight_DCpq
    embed_dim, channels, high, wide = weight_DCpq.shape
    components = _components(weight_DCpq)
    what = "in colour" if channels == 3 else "in grey"  # noqa: PLR2004 - RGB
    return Step(
        "projection",
        "Each patch is projected to a vector",
        (
            (
                f"The row of {weight_DCpq[0].numel()} numbers is multiplied by a learned matrix E. The "
                f"result is a vector of D = {embed_dim} numbers, the patch's token."
            ),
            (
                "Each column of E is a filter: a small picture that the patch is compared with. The "
                f"{len(components)} main patterns among the filters are shown {what}."
            ),
            (
                f"The same map is a convolution with {embed_dim} filters of {high} × {wide} pixels "
                "that moves by a whole patch at a time."
            ),
        ),
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
    )


def _components(weight_DCpq: torch.Tensor) -> Array:
    """Return the first principal components of the filters, scaled from 0 to 1: (k, p, p, C)."""
    centred = weight_DCpq.flatten(1) - weight_DCpq.flatten(1).mean(dim=0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    count = min(_FILTERS, len(directions))
    kCpq = directions[:count].reshape(count, *weight_DCpq.shape[1:])
    largest = kCpq.abs().amax(dim=(1, 2, 3), keepdim=True)
    scaled: Array = (0.5 + 0.5 * kCpq / largest).permute(0, 2, 3, 1).numpy()
    return scaled


def _filters_uri(components_kpqC: Array) -> str:
    rgb = np.broadcast_to(components_kpqC, (*components_kpqC.shape[:3], 3))
    sheet = tiled(rgb, 7)
    alpha = np.where(np.isnan(sheet[..., :1]), 0, 255)
    return png_uri(np.concatenate([np.nan_to_num(sheet) * 255, alpha], axis=-1).astype(np.uint8))


def _matrix(subject: Subject, tokens: torch.Tensor, what: str) -> Picture:
    rows, columns = tokens.shape
    return Picture(
        matrix_uri(tokens.numpy()),
        f"{what}: a matrix of {rows} rows and {columns} columns",
        f"{rows} rows, one for each {'token' if rows > subject.inside.num_patches else 'patch'}; "
        f"{columns} columns. Blue is negative, orange positive",
        look="matrix",
        width=columns,
        height=rows,
    )


def _tokens(subject: Subject) -> Step:
    tokens_nD = subject.inside.patch_tokens
    n, embed_dim = tokens_nD.shape
    return Step(
        "tokens",
        "All patches together are a matrix",
        (
            (
                f"The {n} tokens are the rows of one matrix. From here on the model sees no pixels, "
                f"only these {n} × {embed_dim} numbers."
            ),
        ),
        (_matrix(subject, tokens_nD, "The patches' tokens"),),
        (shape_of("tokens", tokens_nD, "n × D"),),
    )


def _class_token(subject: Subject) -> Step:
    inside = subject.inside
    joined_ND = subject.part("class_token")
    if "class token" not in inside.prefix or joined_ND is None:
        return Step(
            "class-token",
            "No class token joins",
            (
                (
                    "The published ViT adds one learned token that collects the answer. This model "
                    "has none: in the end it combines the patches themselves."
                ),
            ),
            applies=False,
        )
    registers = [name for name in inside.prefix if name.startswith("register")]
    sentences = [
        (
            "One more token is placed before the patches. It belongs to no patch: its numbers are "
            "learned, and they are the same for every image. In the end, the answer is read from it."
        ),
    ]
    if registers:
        sentences.append(
            f"Later, {len(registers)} register tokens join as well. They are learned too, give the "
            "model room for notes, and are dropped at the end."
        )
    vector = joined_ND[:1]
    return Step(
        "class-token",
        "The class token joins",
        tuple(sentences),
        (
            Picture(
                matrix_uri(vector),
                f"The {vector.shape[1]} numbers of the class token",
                "The class token",
                look="strip",
                width=vector.shape[1],
            ),
        ),
        (shape_of("sequence", joined_ND, "(n + 1) × D"),),
    )


# -- positions -------------------------------------------------------------------------------------


def _positions(subject: Subject) -> Step:
    inside = subject.inside
    vectors = _position_vectors(subject)
    rotary = [m for m in subject.modules(RotarySelfAttention) if isinstance(m, RotarySelfAttention)]
    if vectors is None and rotary:
        return _rotary(subject, rotary[0])
    if vectors is None:
        return Step(
            "positions",
            "No positions are added",
            (
                (
                    "The tokens are not told where they come from. What the model knows about places "
                    "is what the patch embedding has left in the tokens."
                ),
            ),
            applies=False,
        )
    learned = bool(subject.modules(LearnedPositionEmbedding))
    kind = "learned" if learned else "fixed: sines and cosines of row and column"
    patches_nD = vectors[-inside.num_patches :]
    sentences = [
        (
            "Attention itself ignores the order of the tokens. So to each token a vector is added "
            f"that says where its patch lies. These vectors are {kind}."
        ),
        (
            "Each small map compares the vector of one place with all others: bright is similar. "
            "Places near each other, or in the same row or column, often have similar vectors."
        ),
    ]
    if rotary:
        sentences.append(
            "In addition, queries and keys are rotated by their place (rotary positions)."
        )
    return Step(
        "positions",
        "Position embeddings are added",
        tuple(sentences),
        (_similarity(patches_nD, inside.grid),),
        (shape_of("E_pos", vectors, "tokens × D"),),
    )


def _position_vectors(subject: Subject) -> torch.Tensor | None:
    for module in subject.modules(LearnedPositionEmbedding, SineCosinePositionEmbedding):
        if isinstance(module, LearnedPositionEmbedding):
            return module.on_grid(subject.inside.grid)[0].detach()
        if isinstance(module, SineCosinePositionEmbedding):
            return module.positions_1ND[0]
    return None


def _similarity(patches_nD: torch.Tensor, grid: tuple[int, int]) -> Picture:
    rows, columns = grid
    unit = functional.normalize(patches_nD, dim=1)
    maps = (unit @ unit.T).numpy().reshape(rows, columns, rows, columns)
    every = -(-max(grid) // _MOST_MAPS)
    shown = maps[::every, ::every]
    sheet = tiled(shown.reshape(-1, rows, columns), shown.shape[1])
    lowest = float(np.nanmin(sheet))
    note = f" (every {every}th place)" if every > 1 else ""
    return Picture(
        sheet_uri((sheet - lowest) / max(1e-9, 1 - lowest)),
        "For each place of the grid, a map of how similar its position vector is to all others",
        f"One map for each place{note}; cosine similarity from {lowest:.2f} (dark) to 1 (bright)",
        width=sheet.shape[1],
        height=sheet.shape[0],
    )


def _rotary(subject: Subject, attention: RotarySelfAttention) -> Step:
    rows, columns = subject.inside.grid
    places_N2 = grid_positions(subject.inside.grid)
    middle_2 = torch.tensor([(columns - 1) // 2, (rows - 1) // 2])
    x_N, y_N = (places_N2 - middle_2).T
    x_AF, y_AF = attention.frequencies_2HF.detach()
    angles_ANF = x_N[None, :, None] * x_AF[:, None] + y_N[None, :, None] * y_AF[:, None]
    maps_Ahw = angles_ANF.cos().mean(dim=-1).reshape(-1, rows, columns).numpy()
    across = min(len(maps_Ahw), 6)
    sheet = tiled(maps_Ahw, across)
    return Step(
        "positions",
        "Positions are rotations, not vectors that are added",
        (
            (
                "Nothing is added to the tokens. Instead, each query and key is rotated by an angle "
                "that depends on its row and column, in every block. So a score depends on how far "
                "apart two patches are."
            ),
            (
                "Each map shows, for one head of block 1, how much of the match between two equal "
                "patches is left if one of them is moved from the middle to another place."
            ),
        ),
        (
            Picture(
                sheet_uri((sheet + 1) / 2, SIGNED),
                "For each head, a map of the match that rotation leaves by distance",
                f"One map for each of the {len(maps_Ahw)} heads: orange is a full match, blue the "
                "opposite",
                width=sheet.shape[1],
                height=sheet.shape[0],
            ),
        ),
        (shape_of("frequencies", attention.frequencies_2HF, "2 × heads × d / 2"),),
        applies=False,
    )


def _input(subject: Subject) -> Step:
    inside = subject.inside
    tokens_ND = inside.blocks[0].tokens_in_BND[0]
    P = len(inside.prefix)
    registers = sum(name.startswith("register") for name in inside.prefix)
    parts = [f"{inside.num_patches} patches"]
    parts += ["1 class token"] if "class token" in inside.prefix else []
    parts += [f"{registers} register{'s' * (registers > 1)}"] if registers else []
    sentences = [f"This matrix enters the first block: {', '.join(parts)}."]
    if isinstance(getattr(subject.model, "embedding_norm", None), nn.LayerNorm | nn.RMSNorm):
        sentences.append("Before that, each row is normalised once, as in CLIP.")
    return Step(
        "input",
        "The input of the Transformer",
        tuple(sentences),
        (_matrix(subject, tokens_ND, "The input of the first block"),),
        (shape_of("z₀", tokens_ND, f"(n + {P}) × D" if P else "n × D"),),
        equation=1,
    )
