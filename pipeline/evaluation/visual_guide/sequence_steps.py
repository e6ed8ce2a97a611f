"""The next steps of the guide: from the patches' tokens to the input of the first block."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from patchline.pipeline.evaluation.visual_guide.embedding_steps import matrix_picture
from patchline.pipeline.evaluation.visual_guide.pictures import (
    SIGNED,
    Picture,
    matrix_uri,
    sheet_uri,
    tiled,
)
from patchline.pipeline.evaluation.visual_guide.story import Step, Subject, shape_of
from patchline.pipeline.models.layers.learned_positions import LearnedPositionEmbedding
from patchline.pipeline.models.layers.rotary_attention import RotarySelfAttention, grid_positions
from patchline.pipeline.models.layers.sine_cosine_positions import SineCosinePositionEmbedding

_MOST_MAPS = 14
"""Maps of positions along a side, at most."""


def sequence_steps(subject: Subject) -> list[Step]:
    """Return the steps about the class token, the positions and the input."""
    return [_class_token(subject), _positions(subject), _input(subject)]


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
            "learned, and they are the same for every image. In the end, the answer is read from "
            "it."
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
                display="strip",
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
                    "The tokens are not told where they come from. What the model knows about "
                    "places is what the patch embedding has left in the tokens."
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
                "Nothing is added to the tokens. Instead, each query and key is rotated by an "
                "angle that depends on its row and column, in every block. So a score depends on "
                "how far apart two patches are."
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
        (matrix_picture(subject, tokens_ND, "The input of the first block"),),
        (shape_of("z₀", tokens_ND, f"(n + {P}) × D" if P else "n × D"),),
        equation=subject.equation(1),
    )
